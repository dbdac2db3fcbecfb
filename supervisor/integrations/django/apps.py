"""The app as Django starts it: what follows rows, what beat asks, what `manage.py check` says."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

from supervisor.sending.sources import register as register_source


class SupervisorConfig(AppConfig):
    """Named `supervisor.django` in INSTALLED_APPS."""

    name = "supervisor.integrations.django"
    label = "supervisor"
    verbose_name = "Supervisor"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # They import the models, which are there only now.
        from supervisor.integrations.django.loading import follow_rows
        from supervisor.integrations.django.project import check_app
        from supervisor.integrations.django.rows import Rows

        follow_rows()
        register_source(Rows())
        register(check_app)
