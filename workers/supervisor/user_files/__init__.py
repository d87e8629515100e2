"""Keeps the files that a script has left in its working directory as artifacts of the attempt."""
