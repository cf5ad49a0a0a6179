"""Threads that sample hardware, and the growth of its counters."""
