"""Links between ranks: flows, ports, PCIe and NVLink paths."""
