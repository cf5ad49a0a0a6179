"""Find the ranks of a host and record windows of them."""
