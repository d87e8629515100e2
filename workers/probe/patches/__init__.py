"""The wrappers that observe calls of torch."""
