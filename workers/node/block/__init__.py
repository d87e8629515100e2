"""Temporary nodes: what an engine has allocated to them."""
