"""Ports of network cards: InfiniBand, RoCE and Ethernet in one model."""
