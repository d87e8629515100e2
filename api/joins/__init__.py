"""Machines that join: what they are given, and whether they can be reached."""
