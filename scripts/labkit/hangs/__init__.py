"""Real hangs, and what only looks like one."""
