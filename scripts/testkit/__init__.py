"""What scripts/test adds to pytest."""
