"""Figures of pools whose nodes an engine supplies."""
