"""`manage.py supervisor`."""
