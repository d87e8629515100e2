"""What only a machine with a CUDA device can show: `make gpu-test` runs all of it in a few minutes."""
