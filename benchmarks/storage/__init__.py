"""Services whose files are elsewhere than in a directory."""
