"""Read programs and libraries of targets (ELF)."""
