"""The faults: a context each that hurts and heals, and says how the command is to be run."""
