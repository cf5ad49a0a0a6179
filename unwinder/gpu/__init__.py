"""Name the GPU kernels that a process launches."""
