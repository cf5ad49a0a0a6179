"""The ledger of each job: where its hours went, from its start."""
