"""What is read from ELF files of a target."""
