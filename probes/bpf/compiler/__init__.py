"""What makes programs and maps of C: bcc, in a process of its own, and the plain data that comes of it."""
