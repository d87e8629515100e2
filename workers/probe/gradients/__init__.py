"""What the probe finds out about gradients: how they are synchronised, and what may bias them."""
