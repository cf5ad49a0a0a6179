"""Compiling, loading and attaching BPF programs; the ring their events come through."""
