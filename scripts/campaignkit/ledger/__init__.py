"""Hours of a job whose pauses come at known times: does `rankscope ledger` tell them all? `scripts/soak --ledger`."""
