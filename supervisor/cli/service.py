"""Verbs that run things, or say how to run them: up, queues."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from supervisor import logs
from supervisor.cli.context import Context, pass_context
from supervisor.cli.serve import access_at, bound
from supervisor.cli.types import PORT
from supervisor.errors import NotConfigured
from supervisor.files.schedule_files import load
from supervisor.job.topology import Topology, WorkerSpec
from supervisor.ledger.connection import connect
from supervisor.settings import Settings

schedules_option = click.option(
    "--schedules",
    type=click.Path(path_type=Path),
    envvar="SUPERVISOR_SCHEDULES",
    help="Directory of schedule files; default: the app's, else schedules.",
)


@click.command()
@schedules_option
@click.option("--redis-url", help="Use this server instead of the embedded one.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=PORT, default=9809, show_default=True, help="Port of /metrics.")
@click.option("--proxied", is_flag=True, help="Behind a proxy: see `supervisor serve --help`.")
@click.option("--concurrency", "-c", type=int, help="Processes of the default worker.")
@click.option("--loglevel", "log_level", default="info", show_default=True)
@click.option("--serve/--no-serve", default=True, help="Run the HTTP server.")
@pass_context
def up(
    context: Context,
    schedules: Path | None,
    redis_url: str | None,
    host: str,
    port: int,
    proxied: bool,
    concurrency: int | None,
    log_level: str,
    serve: bool,
) -> None:
    """Run server, beat, workers and /metrics in the foreground until Ctrl-C."""
    from supervisor.local.up import Up, UpOptions

    # A name that leads nowhere is told here, once, and not by five children that die of it.
    if context.app_name is None or context.app is None:
        raise NotConfigured("name the Celery app: supervisor -A proj up")
    if url := redis_url or context.given_url:
        connect(Settings(redis_url=url)).close()
    if serve:
        # What the HTTP server would die of again and again.
        access_at(host, proxied=proxied)
        bound(host, port).close()
    logs.configure(level=log_level)
    Up(
        UpOptions(
            app=context.app_name,
            schedules=context.schedules(schedules),
            default_queue=context.default_queue,
            redis_url=redis_url or context.given_url,
            host=host,
            port=port,
            proxied=proxied,
            concurrency=concurrency,
            log_level=log_level,
            serve=serve,
            prefix=context.effective_settings.prefix,
        ),
        os.environ,
    ).run()


@click.command()
@schedules_option
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects.")
@pass_context
def queues(context: Context, schedules: Path | None, as_json: bool) -> None:
    """Print the queues, and the command line of the worker for each."""
    app = context.app_name or "proj"
    specs = load(context.schedules(schedules)).specs
    workers = Topology.of(specs.values(), context.default_queue).workers
    if as_json:
        click.echo(json.dumps([described(worker, app) for worker in workers], indent=2))
        return
    for worker in workers:
        kind = "one run at a time" if worker.serial else "default worker"
        click.echo(f"{', '.join(worker.queues)}  ({kind})")
        click.echo(f"  jobs    {', '.join(worker.jobs) or 'none'}")
        click.echo(f"  worker  {shlex.join(worker.command(app))}")


def described(worker: WorkerSpec, app: str) -> dict[str, object]:
    return {
        "worker": worker.name,
        "queues": worker.queues,
        "jobs": worker.jobs,
        "serial": worker.serial,
        "command": worker.command(app),
    }


VERBS: tuple[click.Command, ...] = (up, queues)
