"""Each nominal time of a job was counted once and has an outcome."""
