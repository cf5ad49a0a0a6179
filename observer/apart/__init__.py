"""Observe in a process without rights, served by the process that has them."""
