"""A run at work: from its delivery to its end, whatever happens to its process."""
