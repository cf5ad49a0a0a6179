"""A NCCL job's own account of its ranks (RAS)."""
