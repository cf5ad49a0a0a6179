"""PCI devices, their links, and the bridges above them."""
