"""Groups of hosts that are slow for one reason, such as a rack or a switch. See README.md."""
