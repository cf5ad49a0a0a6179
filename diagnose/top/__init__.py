"""What the ranks of a host do now, on a terminal."""
