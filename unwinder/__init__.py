"""What every Python thread is doing: stacks walked in the kernel, named in user space. See README.md."""
