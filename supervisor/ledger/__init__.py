"""The ledger: the state of every run, in Redis, changed only by atomic functions."""
