"""The Celery app of a Django project."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from celery import Celery
from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.urls import get_script_prefix, set_script_prefix
from redis import Redis

from supervisor.app import completed, named_app, tasks_of
from supervisor.catalog.job_checks import Tasks
from supervisor.errors import SupervisorError
from supervisor.ledger.ledger import Ledger
from supervisor.sending.app_settings import required_settings
from supervisor.store.connection import connect_for_answers
from supervisor.store.keys import Keys

HINT = "name it as for `celery -A`: SUPERVISOR_APP = 'proj' in the settings (docs/how-to/django.md)"


def app_name() -> str:
    """SUPERVISOR_APP of the settings, else the package that the settings are in."""
    named = getattr(settings, "SUPERVISOR_APP", None)
    return str(named or (settings.SETTINGS_MODULE or "").partition(".")[0])


@cache
def celery_app() -> Celery:
    """Raises NotConfigured, also for one that is not supervised."""
    app = named_app(app_name())
    required_settings(app)
    return app


def ledger() -> Ledger:
    """The ledger, for a person's request: a Redis that hangs is given up after two seconds.

    Raises NotConfigured.
    """
    return _ledger(os.getpid())


@cache
def _ledger(_pid: int) -> Ledger:
    """Connections do not survive a fork."""
    settings = required_settings(celery_app())
    return Ledger(connect_for_answers(settings, Redis), Keys.of(settings))


@cache
def project_tasks() -> Tasks:
    """The tasks of the app, after they were imported. Raises NotConfigured."""
    prefix = get_script_prefix()
    try:
        return tasks_of(completed(celery_app()))
    finally:
        # Celery calls django.setup() again, which resets the script prefix of this request.
        set_script_prefix(prefix)


def check_app(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """What `manage.py check` says: a warning, since the site runs without it.

    It must not import the tasks: Celery runs these checks when it does.
    """
    try:
        celery_app()
    except SupervisorError as error:
        return [Warning(f"no supervised Celery app: {error}", hint=HINT, id="supervisor.W001")]
    return []
