"""One file per check. See diagnose/sweep/registry.py for what a check module has."""
