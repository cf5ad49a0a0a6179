"""Ports of network cards: InfiniBand, RoCE and Ethernet alike."""
