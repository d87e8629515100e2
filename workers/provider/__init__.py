"""Keeps the nodes of pools that an engine supplies: asks it for blocks when jobs wait, and lets them go."""
