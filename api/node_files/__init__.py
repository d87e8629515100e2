"""Files that nodes without a shared directory bring and fetch, with their own tokens."""
