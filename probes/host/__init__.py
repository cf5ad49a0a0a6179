"""The host and its processes, from /proc, /sys and namespaces."""
