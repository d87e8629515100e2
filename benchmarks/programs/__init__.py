"""Programs that both sides of a benchmark run: by torchrun, plain python or Ray, and as jobs of the service."""
