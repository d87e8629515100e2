"""What an attempt may use of its node, measured while it runs, and what ends it when it is more."""
