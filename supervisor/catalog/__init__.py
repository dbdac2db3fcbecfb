"""From schedule files and other sources of jobs to what the ledger holds."""
