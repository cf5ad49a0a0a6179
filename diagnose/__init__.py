"""From window files to one verdict. Needs neither root nor the host that was observed. See README.md."""
