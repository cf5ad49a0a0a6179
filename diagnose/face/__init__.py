"""Everything that a person or a program reads: command line, page, exports, live table."""
