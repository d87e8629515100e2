"""Nodes that are there for a time: what an engine has allocated to them."""
