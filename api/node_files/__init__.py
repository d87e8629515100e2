"""Files that nodes without a shared directory upload and fetch, with their own tokens."""
