"""A Django project whose jobs are rows of its admin."""
