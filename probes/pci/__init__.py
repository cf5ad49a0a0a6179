"""PCI devices, their links, and the tree they hang from."""
