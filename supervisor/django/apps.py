"""The app as Django starts it; its code is in supervisor/features/django."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

from supervisor.job.changes import register as register_source


class SupervisorConfig(AppConfig):
    """Named `supervisor.django` in INSTALLED_APPS."""

    name = "supervisor.features.django"
    label = "supervisor"
    verbose_name = "Supervisor"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # They import the models, which are there only now.
        from supervisor.features.django.loading import Rows, follow_rows
        from supervisor.features.django.project import check_app

        follow_rows()
        register_source(Rows())
        register(check_app)
