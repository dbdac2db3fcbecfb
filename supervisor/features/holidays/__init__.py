"""Public holidays in `exclude`."""
