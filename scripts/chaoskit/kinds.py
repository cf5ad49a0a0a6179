"""All faults."""

from chaoskit import disks, limits, storms

KINDS = (*limits.KINDS, *storms.KINDS, *disks.KINDS)
