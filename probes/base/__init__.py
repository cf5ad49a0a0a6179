"""What every room of the probes uses: errors, text, clocks, folders, deadlines, rights."""
