"""Windows or timings in, one fleet out."""
