"""Files that targets have mapped, opened and read safely."""
