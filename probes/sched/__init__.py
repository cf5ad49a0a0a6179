"""Time off the CPU, run-queue delay, and the processes that ran meanwhile."""
