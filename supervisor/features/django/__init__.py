"""Django: jobs as rows in its admin, and verbs of `manage.py supervisor`.

Django imports this package before its models are ready: nothing here imports them.
"""
