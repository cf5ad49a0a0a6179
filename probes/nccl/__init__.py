"""What a NCCL job says of itself (RAS)."""
