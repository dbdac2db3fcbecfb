"""From a run to its message at the broker."""
