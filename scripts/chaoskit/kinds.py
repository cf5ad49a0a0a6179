"""All faults."""

from chaoskit import disks, limits

KINDS = (*limits.KINDS, *disks.KINDS)
