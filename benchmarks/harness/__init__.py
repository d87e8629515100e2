"""What several benchmarks use: servers, load, rounds that take turns, results and their tables."""
