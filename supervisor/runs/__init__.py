"""What a run is, and what is said of it."""
