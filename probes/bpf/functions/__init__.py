"""Probes on functions of a file: put in, beside those of other tools, and only where no fork of the host waits long for it."""
