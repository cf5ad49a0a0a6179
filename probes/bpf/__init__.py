"""Compile, load and attach BPF programs; read the ring of their events."""
