"""Directions of CUDA copies. Pure.

Source: enum cudaMemcpyKind of the CUDA Runtime API; hipMemcpyKind and aclrtMemcpyKind have the same
numbers.
"""

from __future__ import annotations

HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = range(5)
DIRECTIONS = ("host to host", "host to device", "device to host", "device to device", "copy")


def direction(aux: int) -> str:
    """Name the direction of a copy; 'copy' where the library derives it from the addresses."""
    return DIRECTIONS[aux] if 0 <= aux < len(DIRECTIONS) else DIRECTIONS[BY_ADDRESS]
