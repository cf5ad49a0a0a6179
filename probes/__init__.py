"""Sources of facts: BPF programs and counters. Knows nothing of ranks or patterns."""
