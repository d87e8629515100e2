"""Machines that join: what they receive, and whether they can be reached."""
