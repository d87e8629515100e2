"""Models that fail on purpose, each in its own way. Job specs name them as `faulty_programs.models:...`."""
