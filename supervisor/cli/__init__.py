"""The `supervisor` command, and the same verbs as `celery -A proj supervisor`.

Exit codes: 0 success, 1 something is wrong or failed, 2 a mistake in the command line or the setup,
3 not found, 4 refused in the present state, 5 the ledger is unavailable
(docs/reference/commands.md).

`--help` and `--version` load nothing but this module, and a verb only its own: the rest is imported
where it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from errno import ENOSPC
from importlib import import_module
from inspect import ismodule
from pathlib import Path
from typing import Any

import click

import supervisor.installed  # noqa: F401  (before all others)
from supervisor.errors import WRONG, InvalidRequest, SupervisorError, did_you_mean


@dataclass(frozen=True, slots=True)
class Lazy:
    """A verb before it is loaded: its module, and the first sentence of its help."""

    module: str
    help: str


#: The verbs as `--help` lists them.
SECTIONS: Mapping[str, Mapping[str, Lazy]] = {
    "Start": {
        "init": Lazy("init", "Write a first schedule file and, in an empty folder, an app."),
        "up": Lazy("service", "Run Redis, beat, workers and the status page until Ctrl-C."),
    },
    "Schedule files": {
        "check": Lazy("files", "List all problems in schedule files."),
        "plan": Lazy("files", "Show what loading schedule files would change."),
        "apply": Lazy("files", "Load schedule files now, as beat would."),
        "schema": Lazy("files", "Print the JSON Schema of a schedule file, for your editor."),
    },
    "Jobs": {
        "jobs": Lazy("jobs", "List the loaded jobs: next run, last run, state, counts."),
        "next": Lazy("ticks", "List the next nominal times of a job."),
        "why": Lazy("diagnosis", "Explain what happened at a time, or why a job does not run."),
        "pause": Lazy("ticks", "Stop scheduled runs until the jobs are resumed."),
        "resume": Lazy("ticks", "Start scheduled runs of paused jobs again, from now on."),
        "put": Lazy("jobs", "Load jobs at run time from a schedule FILE, all or none."),
        "remove": Lazy("jobs", "Remove jobs that were put at run time, all or none."),
        "export": Lazy("jobs", "Write loaded jobs as a schedule file."),
    },
    "Runs": {
        "runs": Lazy("runs", "List the latest runs, of all jobs or of one."),
        "show": Lazy("runs", "Show a run: attempts, steps, errors, the end of its log."),
        "trigger": Lazy("runs", "Run a job now or at a given time, even if it is paused."),
        "retry": Lazy("runs", "Run ended runs again, with the same arguments."),
        "cancel": Lazy("runs", "Cancel a run, or one step of it."),
        "backfill": Lazy("ticks", "Run a job for nominal times in the past."),
    },
    "Diagnosis": {
        "doctor": Lazy("diagnosis", "Find what is wrong with Redis, beats, workers and queues."),
        "log": Lazy("diagnosis", "Show who did what, from where, and why."),
        "audit": Lazy("audit", "Check that each scheduled time has exactly one outcome."),
        "health": Lazy("service", "Check if this host's beat, worker or server is healthy."),
    },
    "Notices": {
        "notify": Lazy("notices", "Test the addresses that notices go to."),
        "silence": Lazy("notices", "Send no notices of a job for a time."),
        "silences": Lazy("notices", "List the silences of notices, the first to end first."),
        "unsilence": Lazy("notices", "End a silence before its time."),
    },
    "Operation": {
        "serve": Lazy("service", "Serve the status page, the HTTP API, metrics and health checks."),
        "token": Lazy("service", "Make tokens for the users of the page and the API."),
        "queues": Lazy("queues", "List the queues, with the command that starts each worker."),
        "drain": Lazy("queues", "Start no more runs from a queue."),
        "undrain": Lazy("queues", "Start runs from a drained queue again."),
        "render": Lazy("render", "Write the files of a deployment, with workers for all queues."),
    },
    "Moving in and out": {
        "adopt": Lazy("adoption", "Import all schedules of the app into one schedule file."),
        "import": Lazy("adoption", "Write a schedule file from other schedules."),
        "release": Lazy("adoption", "Give the app back to RedBeat, and remove the ledger's keys."),
    },
}

VERBS = {name: verb for verbs in SECTIONS.values() for name, verb in verbs.items()}


#: What Python has in place of bytes of the command line that are not text in the locale's encoding.
SURROGATES = "\udc80", "\udcff"


class Verbs(click.Group):
    """Prints errors of this package and of Redis, a command line that is not text, and that the
    disk of standard output is full, as one message, and exits with their code. Any other error
    shows its traceback.
    """

    def sections(self) -> Mapping[str, Mapping[str, str]]:
        """The verbs with their help, by the titles of their sections."""
        return {
            title: {name: verb.help for name, verb in verbs.items()}
            for title, verbs in SECTIONS.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for verbs in self.sections().values() for name in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        values = vars(import_module(f"supervisor.cli.{VERBS[cmd_name].module}")).values()
        commands = (value for value in values if isinstance(value, click.Command))
        return next(command for command in commands if command.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, names = args[0], self.list_commands(ctx)
        if name not in names and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"no such command {name!r}{did_you_mean(name, names)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, verbs in self.sections().items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in verbs.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except UnicodeEncodeError as error:
            if not any(SURROGATES[0] <= each <= SURROGATES[1] for each in error.object):
                raise
            raise click.UsageError("the command line has text that is not UTF-8") from error
        except Exception as error:
            if failure := failure_of(error):
                raise failure from error
            raise


def failure_of(error: Exception) -> click.ClickException | None:
    """The message that is shown in place of a traceback; None for an error that needs one."""
    from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

    from supervisor.cli.common import CommandFailed
    from supervisor.errors import REFUSED, UNAVAILABLE
    from supervisor.operate.words import harmless
    from supervisor.store.failures import explained

    match error:
        case InvalidRequest():
            return click.UsageError(harmless(str(error)))
        case SupervisorError():
            lines = map(harmless, str(error).split("\n"))
            return CommandFailed("\n".join(lines), error.exit_code)
        case NoPermissionError() | AuthenticationError():
            return CommandFailed(explained(error), REFUSED)
        case RedisError():
            return CommandFailed(explained(error), UNAVAILABLE)
        case OSError(errno=errno) if errno == ENOSPC:
            return CommandFailed(str(error), WRONG)
        case _:
            return None


def documentation() -> Path:
    """The directory that messages call docs/: in an installed package, or in a clone."""
    package = Path(__file__).parents[1]
    installed = package / "docs"
    return installed if installed.is_dir() else package.with_name("docs")


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


def wants_colour(environ: Mapping[str, str]) -> bool | None:
    """As NO_COLOR or else FORCE_COLOR says; None: on a terminal."""
    if environ.get("NO_COLOR"):
        return False
    return True if environ.get("FORCE_COLOR") else None


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
    from supervisor.cli.common import Context

    # Under `celery -A proj supervisor`, Celery has loaded the app; without -A, only a default one.
    named = ctx.parent.params.get("app") if ctx.parent else None
    if (colour := wants_colour(os.environ)) is not None:
        ctx.color = colour
    ctx.obj = Context(
        given_url=redis_url or os.environ.get("SUPERVISOR_REDIS_URL"),
        app_name=app_name if not named else named if isinstance(named, str) else name_of(named),
        loaded_app=ctx.parent.obj.app if ctx.parent and named else None,
    )
    ctx.call_on_close(ctx.obj.close)
