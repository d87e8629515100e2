"""Samples the hardware of a node's devices once a second."""
