"""Pools that a real Slurm supplies, and what it does to them."""
