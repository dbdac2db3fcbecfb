"""Jobs that run after others."""
