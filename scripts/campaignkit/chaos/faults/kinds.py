"""All faults."""

from campaignkit.chaos.faults import disks, limits, others, storms

KINDS = (*limits.KINDS, *storms.KINDS, *disks.KINDS, *others.KINDS)
