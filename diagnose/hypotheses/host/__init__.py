"""What touches all ranks of a host."""
