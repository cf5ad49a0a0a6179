"""Fleets of thousands of hosts: surveyed by many workers, few hosts read in full. See README.md."""
