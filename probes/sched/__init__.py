"""Time off the CPU, run-queue delay, and who took the CPU."""
