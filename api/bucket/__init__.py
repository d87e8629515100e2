"""A bucket as the storage of the API: its files are read here as copies, which are fetched when they are wanted."""
