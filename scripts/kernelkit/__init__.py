"""Boot kernels of the distribution's archive in software emulation over this host's root, and say what works on each."""
