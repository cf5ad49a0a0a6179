"""Walk Python stacks: in the kernel, in user space for a blocked thread, by py-spy elsewhere."""
