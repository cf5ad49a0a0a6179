"""Slow or failing links between ranks: TCP flows, ports, PCIe and NVLink paths."""
