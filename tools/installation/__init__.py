"""An installation of many jobs with a week of history: see `python -m tools.installation`."""
