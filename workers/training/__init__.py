"""Trains recipes inside a rank process, with torch."""
