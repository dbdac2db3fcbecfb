"""The `supervisor` command, and the same verbs as `celery -A proj supervisor`.

Exit codes: 0 success, 1 something is wrong or failed, 2 a mistake in the command line or the setup,
3 not found, 4 refused in the present state, 5 the ledger is unavailable
(docs/reference/commands.md).
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from errno import ENOSPC
from importlib import import_module
from inspect import ismodule
from typing import Any

import click
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

import supervisor.installed  # noqa: F401  (before all others)
from supervisor.cli.common import Context, Failure, documentation
from supervisor.errors import REFUSED, UNAVAILABLE, WRONG, InvalidRequest, SupervisorError
from supervisor.operate.words import harmless
from supervisor.settings import Settings
from supervisor.store.connection import explained

#: The verbs of each module. A module is loaded with its verb: `celery` loads this command always.
MODULES = {
    "files": ("check", "schema", "init", "plan", "apply"),
    "imports": ("import", "adopt", "release"),
    "jobs": ("jobs", "put", "remove", "export"),
    "service": ("drain", "undrain", "health", "serve", "up", "queues", "token"),
    "render": ("render",),
    "runs": ("runs", "show", "trigger", "retry", "cancel"),
    "silences": ("silence", "silences", "unsilence"),
    "ticks": ("next", "backfill", "audit", "pause", "resume"),
    "ask": ("doctor", "why", "log", "notify"),
}


#: What Python has in place of bytes of the command line that are not text in the locale's encoding.
SURROGATES = "\udc80", "\udcff"


class Verbs(click.Group):
    """Prints errors of this package and of Redis, a command line that is not text, and that the
    disk of standard output is full, as one message, and exits with their code. Any other error
    shows its traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(verb for verbs in MODULES.values() for verb in verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for module, verbs in MODULES.items():
            if cmd_name in verbs:
                found = vars(import_module(f"supervisor.cli.{module}")).values()
                commands = (value for value in found if isinstance(value, click.Command))
                return next(command for command in commands if command.name == cmd_name)
        return None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidRequest as error:
            raise click.UsageError(harmless(str(error))) from error
        except SupervisorError as error:
            lines = map(harmless, str(error).split("\n"))
            raise Failure("\n".join(lines), error.exit_code) from error
        except (NoPermissionError, AuthenticationError) as error:
            raise Failure(explained(error), REFUSED) from error
        except RedisError as error:
            raise Failure(explained(error), UNAVAILABLE) from error
        except UnicodeEncodeError as error:
            if not any(SURROGATES[0] <= each <= SURROGATES[1] for each in error.object):
                raise
            raise click.UsageError("the command line has text that is not UTF-8") from error
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            raise Failure(str(error), WRONG) from error


def name_of(app: Any) -> str:
    """A name by which -A finds the app: Celery before 5.5 does not keep the one it was given."""
    modules = ((name, vars(module)) for name, module in sys.modules.items() if ismodule(module))
    return next(
        f"{module}:{name}"
        for module, names in modules
        if module.partition(".")[0] != "celery"
        for name, value in names.items()
        if value is app
    )


@click.group("supervisor", cls=Verbs, epilog=f"Documentation (docs/...): {documentation()}")
@click.option(
    "-A", "--app", "app_name", envvar="SUPERVISOR_APP", help="Celery app, as in celery -A."
)
@click.option(
    "--redis-url",
    help="Redis of the ledger; default: SUPERVISOR_REDIS_URL, else that of an `up` here.",
)
@click.version_option(package_name="celery-beat-supervisor", prog_name="supervisor")
@click.pass_context
def main(ctx: click.Context, app_name: str | None, redis_url: str | None) -> None:
    """Supervise periodic Celery jobs, from schedule file to outcome."""
    settings = Settings.from_environ(os.environ)
    if redis_url:
        settings = replace(settings, redis_url=redis_url)
    # Under `celery -A proj supervisor`, Celery has loaded the app; without -A, only a default one.
    named = ctx.parent.params.get("app") if ctx.parent else None
    ctx.obj = Context(
        settings=settings,
        given_url=redis_url or os.environ.get("SUPERVISOR_REDIS_URL"),
        app_name=app_name if not named else named if isinstance(named, str) else name_of(named),
        loaded_app=ctx.parent.obj.app if ctx.parent and named else None,
    )
    ctx.call_on_close(ctx.obj.close)
