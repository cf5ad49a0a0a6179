"""Data sources of a host: BPF programs and counters. They know nothing of ranks or patterns."""
