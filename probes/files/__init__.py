"""Read, write and sync system calls of watched processes."""
