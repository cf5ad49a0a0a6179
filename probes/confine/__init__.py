"""Give up a process's rights before it reads untrusted data."""
