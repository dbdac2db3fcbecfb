"""What every verb is handed: the settings and, where one was named, the Celery app."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.job.topology import DEFAULT_QUEUE
from supervisor.settings import Settings, running_url

if TYPE_CHECKING:
    from celery import Celery

    from supervisor.ledger.runs import Ledger


def documentation() -> Path:
    """The pages that messages name as docs/...: in an installed package, or in a clone."""
    package = Path(__file__).parents[1]
    installed = package / "docs"
    return installed if installed.is_dir() else package.with_name("docs")


@dataclass
class Context:
    """settings: from the environment. given_url: --redis-url or SUPERVISOR_REDIS_URL, if any."""

    settings: Settings
    given_url: str | None = field(default=None, repr=False)
    app_name: str | None = None
    loaded_app: Celery | None = None

    @cached_property
    def app(self) -> Celery | None:
        """The Celery app named by -A or loaded by `celery -A`, with its tasks, on first use."""
        if self.app_name is None:
            return None
        from supervisor.app import completed, load_app

        return completed(self.loaded_app) if self.loaded_app else load_app(self.app_name)

    @cached_property
    def ledger(self) -> Ledger:
        from supervisor.ledger.runs import Ledger

        return Ledger.open(self.effective_settings)

    def close(self) -> None:
        """Gives the ledger's connections back, if there are any."""
        if "ledger" in self.__dict__:
            self.ledger.close()

    def schedules(self, named: Path | None) -> Path:
        """The path that was named, else what the app's beat follows, else ``schedules``."""
        if named is None and self.app is not None:
            from supervisor.app import schedules_of

            named = schedules_of(self.app)
        return named or Path("schedules")

    @property
    def default_queue(self) -> str:
        """Where the app sends the jobs that name no queue."""
        return str(self.app.conf.task_default_queue) if self.app else DEFAULT_QUEUE

    @property
    def effective_settings(self) -> Settings:
        """The url that was given, else that of a `supervisor up` that runs here, else the app's."""
        if self.app is None:
            return self.settings
        from supervisor.app import settings_of

        return settings_of(self.app, self.given_url or running_url()) or self.settings


pass_context = click.make_pass_decorator(Context)
