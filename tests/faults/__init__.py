"""The faults that the service must survive, each a test; what injects them; and what must hold whatever happens."""
