"""Jobs out of what Celery and RedBeat know: `beat_schedule`, and RedBeat's entries in Redis."""
