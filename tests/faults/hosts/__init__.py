"""Faults of jobs that run on several hosts."""
