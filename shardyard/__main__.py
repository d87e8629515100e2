"""`python -m shardyard`, the same as `shardyard`."""

from shardyard.cli import main

if __name__ == "__main__":
    main()
