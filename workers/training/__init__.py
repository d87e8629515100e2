"""What runs inside a rank process: the only place of this project that imports torch."""
