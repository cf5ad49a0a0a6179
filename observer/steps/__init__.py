"""Find the steps of a rank, the iterations of its training loop, from timed calls."""
