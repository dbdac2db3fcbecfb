"""The verb that tries schedules on a virtual clock: simulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import click
from redis.exceptions import RedisError

from supervisor.cli.context import Context, pass_context
from supervisor.cli.output import print_json, print_table
from supervisor.cli.schedules import path_argument, read_or_exit
from supervisor.cli.types import MomentType, Named, moment_of
from supervisor.display.simulated import (
    JOB_COLUMNS,
    QUEUE_COLUMNS,
    job_rows,
    queue_rows,
    tally_shape,
)
from supervisor.display.words import span
from supervisor.errors import InvalidDuration
from supervisor.hints import did_you_mean
from supervisor.job.spec import JobSpec
from supervisor.simulation.engine import simulate as simulated
from supervisor.simulation.parts import SimulatedJob
from supervisor.simulation.tally import Tally
from supervisor.simulation.ticks import number_of_ticks, ticks_of
from supervisor.times.durations import parse

#: More would take minutes and gigabytes.
MOST_TICKS = 1_000_000

#: For jobs of which nothing is known.
ASSUMED = timedelta(seconds=1)


@click.command()
@path_argument
@click.option("--from", "start", type=MomentType(ahead=True), help="In UTC; default: now.")
@click.option("--to", "end", type=MomentType(ahead=True), help="Default: a day after --from.")
@click.option(
    "--duration",
    "given",
    multiple=True,
    metavar="JOB=30s",
    help="How long the runs of a job last; default: the median of those observed, else 1s.",
)
@click.option(
    "--worker-slots",
    "slots",
    type=click.IntRange(min=1),
    help="Runs at once on each queue that is not serial; default: as many as needed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_context
def simulate(
    context: Context,
    path: Path | None,
    start: Named | None,
    end: Named | None,
    given: tuple[str, ...],
    slots: int | None,
    as_json: bool,
) -> None:
    """Run the schedule files at PATH on a virtual clock, with the real decisions and no tasks."""
    specs = read_or_exit(context, path, as_json).specs
    zone, now = ZoneInfo("UTC"), datetime.now(UTC).replace(microsecond=0)
    first = moment_of(start, zone, now) or now
    last = moment_of(end, zone, now) or first + timedelta(days=1)
    check_span(specs, first, last)
    durations = {
        **dict.fromkeys(specs, ASSUMED),
        **medians(context, specs),
        **given_durations(given, specs),
    }
    tally = Tally.of(
        simulated(jobs_of(specs, durations, context.default_queue, first, last), last, slots),
        first,
        last,
    )
    if as_json:
        seconds = {name: duration.total_seconds() for name, duration in durations.items()}
        print_json(tally_shape(tally, seconds, slots))
        return
    words = {name: span(duration.total_seconds()) for name, duration in durations.items()}
    print_table(JOB_COLUMNS, job_rows(tally, words))
    click.echo()
    print_table(QUEUE_COLUMNS, queue_rows(tally, slots))


def jobs_of(
    specs: Mapping[str, JobSpec],
    durations: Mapping[str, timedelta],
    default_queue: str,
    start: datetime,
    end: datetime,
) -> Iterator[SimulatedJob]:
    for name, spec in sorted(specs.items()):
        queue = spec.routed_queue or default_queue
        yield SimulatedJob(spec, ticks_of(spec, start, end), always(durations[name]), queue)


def check_span(specs: Mapping[str, JobSpec], start: datetime, end: datetime) -> None:
    if end <= start:
        raise click.BadParameter("must be later than --from", param_hint="--to")
    ticks = sum(number_of_ticks(spec, start, end) for spec in specs.values())
    if ticks > MOST_TICKS:
        raise click.BadParameter(
            f"that is {ticks:,} ticks; at most {MOST_TICKS:,} are simulated", param_hint="--to"
        )


def medians(context: Context, specs: Mapping[str, JobSpec]) -> dict[str, timedelta]:
    """Of the durations that the ledger has observed; nothing when it is away."""
    try:
        records = context.ledger.records_of(list(specs.values()))
    except (RedisError, OSError) as error:
        words = f"the ledger is away ({error}): a duration that is not given is taken to be 1s"
        click.echo(words, err=True)
        return {}
    found = ((record.spec.name, record.durations.quantile(0.5)) for record in records)
    return {name: timedelta(seconds=median) for name, median in found if median is not None}


def given_durations(given: tuple[str, ...], specs: Mapping[str, JobSpec]) -> dict[str, timedelta]:
    return dict(given_duration(text, specs) for text in given)


def given_duration(text: str, specs: Mapping[str, JobSpec]) -> tuple[str, timedelta]:
    job, equals, duration = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not JOB=30s", param_hint="--duration")
    if job not in specs:
        hint = did_you_mean(job, specs)
        raise click.BadParameter(f"unknown job {job!r}{hint}", param_hint="--duration")
    try:
        return job, parse(duration)
    except InvalidDuration as error:
        raise click.BadParameter(str(error), param_hint="--duration") from error


def always(duration: timedelta) -> Callable[[], timedelta]:
    return lambda: duration


VERBS: tuple[click.Command, ...] = (simulate,)
