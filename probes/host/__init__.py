"""/proc, /sys and namespaces: the host and its processes."""
