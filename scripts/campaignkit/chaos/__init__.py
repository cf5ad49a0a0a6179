"""Faults of a host against the real commands beside a small real job: `scripts/chaos`."""
