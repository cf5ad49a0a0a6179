"""Compile programs and maps from C, with bcc in a separate process, to plain data."""
