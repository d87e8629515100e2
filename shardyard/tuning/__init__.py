"""Finds the strategy, the number of devices and the batch size with which a recipe trains fastest."""
