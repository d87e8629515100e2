"""Carries the files of attempts to a storage that is not mounted on their node."""
