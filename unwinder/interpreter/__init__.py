"""Find a CPython interpreter in a process: version, layout, threads, collector, GIL."""
