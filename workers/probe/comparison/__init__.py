"""What is seen of a rank so that the report can compare it with other ranks."""
