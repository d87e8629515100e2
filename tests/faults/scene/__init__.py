"""The service that faults are put into, what records what it did, and what judges that."""
