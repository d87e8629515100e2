"""Storage on other hosts: where what outlives an attempt is carried to, if no directory is shared."""
