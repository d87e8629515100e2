"""What is observed in a rank so that the report can compare it with other ranks."""
