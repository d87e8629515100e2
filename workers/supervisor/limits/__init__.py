"""What an attempt may use of its node: measured while it runs, and the attempt is ended when it uses more."""
