"""Live view of a host's ranks on a terminal."""
