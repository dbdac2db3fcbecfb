"""What the schedules would do, on a virtual clock: the same decisions, no Redis and no waiting."""
