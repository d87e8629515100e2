"""What the node's agent does where the storage is not mounted."""
