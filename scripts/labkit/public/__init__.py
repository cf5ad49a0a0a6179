"""Public reports of slow training, rebuilt in kind: what all ranks share, or one rank alone; healthy and at fault."""
