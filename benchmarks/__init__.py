"""Side-by-side measurements: `python -m benchmarks --help`. README.md has the method and its caveats."""
