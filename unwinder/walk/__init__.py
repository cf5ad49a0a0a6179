"""Walking Python stacks: in the kernel, in user space for a thread that stands still, by py-spy elsewhere."""
