"""Django: jobs as rows in its admin, verbs of `manage.py supervisor`, triggers after a commit.

Django imports this package before its models are ready: nothing here imports them.
"""

from __future__ import annotations

from supervisor.integrations.django.on_commit import trigger_on_commit

__all__ = ["trigger_on_commit"]
