"""Verbs about notices: notify test, silence, silences, unsilence."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import click

from supervisor.cli.common import (
    Context,
    DurationType,
    MomentText,
    MomentType,
    examples,
    json_option,
    moment_of,
    pass_context,
    print_done,
    print_json,
    print_table,
    reason_option,
    schedules_option,
)
from supervisor.cli.files import read_or_exit
from supervisor.errors import SupervisorError

if TYPE_CHECKING:
    from supervisor.features.notices.keys import Destination
    from supervisor.features.notices.rules import Notice
    from supervisor.features.notices.silences import Silence


# notify test


#: How many of the places that name a destination are shown.
MOST_NAMED = 3


@click.group()
def notify() -> None:
    """Test the addresses that notices go to."""


@notify.command("test", epilog=examples("-A proj notify test", "-A proj notify test nightly"))
@click.argument("job", required=False)
@schedules_option
@json_option
@pass_context
def notify_test(context: Context, job: str | None, schedules: Path | None, as_json: bool) -> None:
    """Send a test notice to each address.

    To those in the schedule files and in SUPERVISOR_NOTIFY. With JOB, only to those of this job,
    which may have been put at run time. References are looked up in this environment: run it in
    that of beat. Exits 1 unless all addresses take the notice.
    """
    from supervisor.features.notices.services import send
    from supervisor.features.outbound.answer import Answer
    from supervisor.job.secrets import masked_url
    from supervisor.operate.tables import Columns

    results: list[dict[str, Any]] = []
    for destination, places in destinations_of(context, job, schedules, as_json):
        answer, why = send(destination, a_test())
        shown = str(masked_url(destination.url))
        results.append({"name": shown, "state": answer.value, "why": why, "of": places})
    if as_json:
        print_done("notify test", results)
    else:
        columns = Columns.named("address, answer, reason, named by", drops="named by")
        print_table(columns, [row_of_test(**result) for result in results])
    if any(result["state"] != Answer.TAKEN for result in results):
        raise SystemExit(1)


def destinations_of(
    context: Context, job: str | None, schedules: Path | None, as_json: bool
) -> Iterable[tuple[Destination, list[str]]]:
    """Each destination once, with what names it: jobs, or the setting. Raises SupervisorError."""
    from supervisor.features.notices.rules import service_destinations
    from supervisor.settings import NOTIFY

    specs = read_or_exit(context, schedules, as_json).specs
    if job:
        spec = specs.get(job) or context.ledger.spec(job)
        named = [(to, spec.name) for to in spec.notify]
    else:
        named = [(to, spec.name) for spec in specs.values() for to in spec.notify]
        named += [(to, NOTIFY) for to in service_destinations(os.environ)]
    if not named:
        none = f"no job of the schedule files has 'notify', and {NOTIFY} is not set"
        raise SupervisorError(f"{job} has no 'notify'" if job else none)
    first: dict[tuple[str, str | None], tuple[Destination, list[str]]] = {}
    for to, place in named:
        first.setdefault((to.url, to.secret), (to, []))[1].append(place)
    return first.values()


def a_test() -> Notice:
    from supervisor.features.notices.keys import Event
    from supervisor.features.notices.rules import Notice

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


def row_of_test(name: str, state: str, why: str, of: list[str]) -> tuple[str, ...]:
    from supervisor.features.outbound.answer import Answer
    from supervisor.operate.words import listed

    taken = "accepted" if state == Answer.TAKEN else state
    return name, taken, why, listed(of, MOST_NAMED)


# silence, silences, unsilence


@click.command(
    epilog=examples(
        "silence import-orders --for 2h --reason 'the shop is being moved'",
        "silence --label tenant=acme --until 06:00 --reason 'their database is upgraded'",
    ),
)
@click.argument("job", required=False)
@click.option(
    "--label", default="", help="Instead of a JOB: all jobs with this label, such as tenant=acme."
)
@click.option(
    "--all", "is_of_all", is_flag=True, help="Instead of a JOB: all jobs, and the service itself."
)
@click.option(
    "--until",
    type=MomentType(ahead=True),
    help="When it ends: 06:00 (in the job's zone), 2026-03-01T06:00.",
)
@click.option("--for", "duration", type=DurationType(), help="How long: 90m, 2h.")
@click.option("--reason", required=True, help="Reason, for those who miss a notice.")
@json_option
@pass_context
def silence(
    context: Context,
    job: str | None,
    label: str,
    is_of_all: bool,
    until: MomentText | None,
    duration: timedelta | None,
    reason: str,
    as_json: bool,
) -> None:
    """Send no notices of a job for a time.

    It ends by itself. Problems that are over by then are never sent; those that are not are sent
    then. Runs, pings, metrics and Prometheus' alerts are not affected.
    """
    from supervisor.features.notices import silences
    from supervisor.operate.words import stamp

    if sum((job is not None, bool(label), is_of_all)) != 1:
        raise click.UsageError("name one of JOB, --label and --all")
    ledger = context.ledger
    zone = ledger.spec(job).zone if job else ZoneInfo("UTC")
    moment = moment_of(until, zone, ledger.now())
    made = silences.silence(
        ledger, job or "", label, until=moment, duration=duration, by=context.actor, reason=reason
    )
    if as_json:
        print_done("silence", [shaped(made, "silenced")])
        return
    click.echo(f"{made.id}: {made.words} silenced until {stamp(made.ends_at)}")


@click.command(epilog=examples("silences"))
@json_option
@pass_context
def silences(context: Context, as_json: bool) -> None:
    """List the silences of notices, the first to end first."""
    from supervisor.features.notices import api
    from supervisor.features.notices.silences import SilenceStore
    from supervisor.operate.tables import Columns
    from supervisor.operate.words import stamp

    in_force = SilenceStore(context.ledger).in_force(context.ledger.now())
    if as_json:
        print_json([api.Silence.dumped(each) for each in in_force])
        return
    rows = [
        (each.id, each.target, stamp(each.ends_at), each.by, each.reason, stamp(each.begins_at))
        for each in in_force
    ]
    columns = Columns.named("id, jobs, until, by, reason, since", drops="since, by, reason")
    print_table(columns, rows)


@click.command(epilog=examples("unsilence import-orders", "unsilence all"))
@click.argument("target", metavar="ID|JOB|LABEL|all")
@reason_option
@json_option
@pass_context
def unsilence(context: Context, target: str, reason: str, as_json: bool) -> None:
    """End a silence before its time.

    By its id, or all silences of this job or label, or those of all jobs. Problems
    that are not over are sent at once.
    """
    from supervisor.features.notices import silences

    ended = silences.unsilence(context.ledger, target, by=context.actor, reason=reason)
    if as_json:
        print_done("unsilence", [shaped(each, "ended") for each in ended])
        return
    for each in ended:
        click.echo(f"{each.id}: {each.words} no longer silenced")


def shaped(silence: Silence, state: str) -> dict[str, object]:
    from supervisor.features.notices import api

    return {"name": silence.target, "state": state, **api.Silence.dumped(silence)}
