"""What only an installed extra needs; each file can be deleted without touching the rest."""
