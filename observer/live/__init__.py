"""What runs while a window runs."""
