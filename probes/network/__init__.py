"""TCP flows, interfaces and queueing disciplines of a network namespace."""
