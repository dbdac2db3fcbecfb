"""The verb for notices: notify test."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from supervisor.cli.common import (
    Context,
    json_option,
    pass_context,
    print_done,
    print_table,
)
from supervisor.cli.files import read_or_exit
from supervisor.errors import NotConfigured, SupervisorError
from supervisor.job.changes import masked_url
from supervisor.job.destinations import is_destination, service_destinations
from supervisor.job.notices import Answer, Destination, Event, Notice
from supervisor.job.secrets import malformed
from supervisor.operate.table_layout import Columns
from supervisor.settings import NOTIFY

DEADLINE_SECONDS = 20.0

COLUMNS = Columns.named("DESTINATION, ANSWER, WHY, OF", folds="WHY, OF", drops="OF")

#: Where a destination is named in more places, as many are shown.
MOST_NAMED = 3


@click.group()
def notify() -> None:
    """Try the addresses that notices go to."""


@notify.command("test")
@click.argument("target", required=False, metavar="[ADDRESS|JOB]")
@click.option(
    "--schedules",
    type=click.Path(path_type=Path),
    envvar="SUPERVISOR_SCHEDULES",
    help="The schedule files; default: the app's, else schedules.",
)
@json_option
@pass_context
def notify_test(
    context: Context, target: str | None, schedules: Path | None, as_json: bool
) -> None:
    """Send a test to each address of the schedule files and of SUPERVISOR_NOTIFY.

    With JOB, only to those of this job, which may be one that was put at run time; with an ADDRESS
    such as '${SLACK_URL}', only there. References become secrets in this environment: run it in
    beat's. Exits 1 unless all of them take it.
    """
    from supervisor.integrations import sender

    results: list[dict[str, Any]] = []
    for destination, places in wanted(context, target, schedules, as_json):
        answer, why = sender()(destination, a_test(), deadline_seconds=DEADLINE_SECONDS)
        shown = str(masked_url(destination.url))
        results.append({"name": shown, "state": answer.value, "why": why, "of": places})
    if as_json:
        print_done("notify test", results)
    else:
        print_table(COLUMNS, [row(**result) for result in results])
    if any(result["state"] != Answer.TAKEN for result in results):
        raise SystemExit(1)


def wanted(
    context: Context, target: str | None, schedules: Path | None, as_json: bool
) -> Iterable[tuple[Destination, list[str]]]:
    """Each once, and who names it: jobs, or the setting. Raises SupervisorError for none."""
    if target and ("://" in target or "${" in target):
        return [(an_address(target), [])]
    specs = read_or_exit(context, schedules, as_json).specs
    if target:
        spec = specs.get(target) or context.ledger.spec(target)
        named = [(to, spec.name) for to in spec.notify]
    else:
        named = [(to, spec.name) for spec in specs.values() for to in spec.notify]
        named += [(to, NOTIFY) for to in service_destinations(os.environ)]
    if not named:
        nobody = f"no job of the schedule files has 'notify', and {NOTIFY} is not set"
        raise SupervisorError(f"{target} has no 'notify'" if target else nobody)
    first: dict[tuple[str, str | None], tuple[Destination, list[str]]] = {}
    for to, place in named:
        first.setdefault((to.url, to.secret), (to, []))[1].append(place)
    return first.values()


def an_address(written: str) -> Destination:
    """Raises NotConfigured."""
    if malformed(written) or not is_destination(written):
        raise NotConfigured("neither an address such as https://host/path, nor ${NAME}")
    return Destination(url=written)


def a_test() -> Notice:
    now, key = datetime.now(UTC), f"test-{uuid4()}"
    return Notice(
        key=key,
        incident=key,
        event=Event.TEST,
        cause="",
        jobs=(),
        job_count=0,
        first_at=now,
        last_at=now,
        reason=f"Sent by `supervisor notify test` on {socket.gethostname()}. Nothing has happened.",
    )


def row(name: str, state: str, why: str, of: list[str]) -> tuple[str, ...]:
    more = len(of) - MOST_NAMED
    return name, state, why, ", ".join(of[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
