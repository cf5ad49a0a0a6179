"""What the numbers of CUDA's calls mean: copy directions, which rows launch kernels. Pure.

Directions: enum cudaMemcpyKind of the CUDA Runtime API; hipMemcpyKind and aclrtMemcpyKind have the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.probes.calls.row import LAUNCH, CallRow
from rankscope.probes.calls.rows_cuda import DRIVER

HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS = range(5)
DIRECTIONS = ("host to host", "host to device", "device to host", "device to device", "copy")
# Through PCIe; copies on the device stay in its memory or go through NVLink. A copy by address may be either.
CROSSES_PCIE = frozenset({HOST_TO_DEVICE, DEVICE_TO_HOST})


def direction(aux: int) -> str:
    """Words for the direction of a copy; 'copy' where the library finds it out from the addresses."""
    return DIRECTIONS[aux] if 0 <= aux < len(DIRECTIONS) else DIRECTIONS[BY_ADDRESS]


def crosses_pcie(aux: int) -> bool:
    """Whether a copy of this direction goes between host and device."""
    return aux in CROSSES_PCIE


def runtime_launch_rows(table: Sequence[CallRow]) -> frozenset[int]:
    """Launch rows whose calls end in a launch row of the driver: both are counted, and mean the same kernel."""
    return frozenset(
        index for index, row in enumerate(table) if row.role == LAUNCH and not row.library.startswith(DRIVER)
    )
