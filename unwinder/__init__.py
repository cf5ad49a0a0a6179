"""Python stacks of other processes: walked in the kernel, named in user space. See README.md."""
