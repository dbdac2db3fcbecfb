"""The connection to Redis and the names of its keys."""
