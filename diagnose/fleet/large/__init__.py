"""Fleets of thousands of hosts: surveyed by many workers, and read in full only where it matters. See README.md."""
