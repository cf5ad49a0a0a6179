"""All faults."""

from chaoskit.faults import disks, limits, storms

KINDS = (*limits.KINDS, *storms.KINDS, *disks.KINDS)
