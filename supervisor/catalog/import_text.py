"""Jobs as the text of a schedule file: block style, keys in the order of the documentation.

Each job is read back before it is written, so that what comes out loads.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from supervisor.catalog.job_checks import KEYS, check_job
from supervisor.catalog.yaml_source import plain_value, read
from supervisor.errors import InvalidSchedule, NotTranslatable
from supervisor.job.fields import NAME_PATTERN
from supervisor.job.secrets import escaped
from supervisor.schedule.rrule import WEEKDAYS as NAMES
from supervisor.schedule.rrule import parse

# Sets of minutes, hours, days, months and weekdays -> a cron expression.


MINUTES = range(60)
HOURS = range(24)
DAYS = range(1, 32)
MONTHS = range(1, 13)
CRON_WEEKDAYS = range(7)


def expression(
    minutes: Collection[int],
    hours: Collection[int],
    days: Collection[int],
    months: Collection[int],
    weekdays: Collection[int],
) -> str:
    """Raises NotTranslatable where cron cannot say it. Sunday is weekday 0.

    In the sets a day has to match both its number and its weekday, as in Celery.
    """
    if not all((minutes, hours, days, months, weekdays)):
        raise NotTranslatable("it never fires: one of its fields is empty")
    if set(days) != set(DAYS) and set(weekdays) != set(CRON_WEEKDAYS):
        both = "a day has to match day of month and day of week both"
        raise NotTranslatable(f"{both}; in cron either of them would do")
    fields = (minutes, MINUTES), (hours, HOURS), (days, DAYS), (months, MONTHS)
    return " ".join(compact(set(v), field) for v, field in (*fields, (weekdays, CRON_WEEKDAYS)))


def compact(values: set[int], field: range) -> str:
    """`*`, `*/5`, or values and ranges such as `1-5,9`."""
    if values == set(field):
        return "*"
    for step in range(2, len(field)):
        if values == set(field[::step]) and (len(values) > 2 or len(field) % step == 0):
            return f"*/{step}"
    return ",".join(_runs(sorted(values)))


def _runs(values: list[int]) -> Iterator[str]:
    """Three or more in a row as a range."""
    start = 0
    for end, value in enumerate(values):
        if end + 1 < len(values) and values[end + 1] == value + 1:
            continue
        if end - start >= 2:
            yield f"{values[start]}-{value}"
        else:
            yield from map(str, values[start : end + 1])
        start = end + 1


# What an import found, in the order of its source.


@dataclass(frozen=True, slots=True)
class Found:
    """One job."""

    source: str
    """Where it was found, such as "RedBeat 'nightly'"."""

    name: str
    """In its source."""

    values: Mapping[str, Any]
    """Its keys in a schedule file."""

    lost: Sequence[str] = ()
    """What of it is not translated, though the job is."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that could not be translated."""

    source: str
    why: str
    original: Sequence[str] = ()
    """What it looked like, line by line."""


Item = Found | LeftOut

LONGEST_NAME = 100


def is_job_name(text: str) -> bool:
    return bool(re.fullmatch(NAME_PATTERN, text))


def job_name(text: str, taken: Collection[str] = ()) -> str:
    """The text itself where it is a valid and free name; else the nearest one."""
    name = text if is_job_name(text) else _cleaned(text)
    unique, number = name, 2
    while unique in taken:
        suffix = f"-{number}"
        unique, number = name[: LONGEST_NAME - len(suffix)] + suffix, number + 1
    return unique


def _cleaned(text: str) -> str:
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", text)
    return words.lstrip("-._")[:LONGEST_NAME].rstrip("-._") or "job"


WIDTH = 96

#: What a job does and when comes first; the other keys are in the order of the documentation.
FIRST = (
    *("entry", "task", "steps", "params", "args", "kwargs", "description"),
    *("cron", "every", "phase", "rrule", "at", "timezone", "start_at", "end_at"),
    *("run_at_start", "paused"),
)
ORDER = tuple(dict.fromkeys((*FIRST, *KEYS)))

#: Keys whose values are quoted, needed or not, as they are in the documentation.
QUOTED = ("cron", "rrule")

#: What a job has without the key.
DEFAULTS = {"args": [], "kwargs": {}, "description": "", "timezone": "UTC", "paused": False}


@dataclass(slots=True)
class Written:
    """A schedule file that was made of what an import found."""

    text: str = ""
    jobs: list[str] = field(default_factory=list)
    """Their names."""

    reports: list[str] = field(default_factory=list)
    """What is not translated, and why."""


def write(header: Sequence[str], items: Iterable[Item]) -> Written:
    """The schedule file for what was found. The same input gives the same text.

    Names that jobs can have go to those that have them; what gets another says of what entry it is.
    """
    items, written = list(items), Written()
    names = names_for(items)
    blocks = [
        block
        for place, item in enumerate(items)
        for block in _blocks(item, names.get(place, ""), written)
    ]
    head = "".join(_comment(line, "") for line in header)
    jobs = "jobs:\n" if written.jobs else "jobs: {}\n"
    written.text = f"{head}\n{jobs}" + "\n".join(blocks)
    return written


def names_for(items: Sequence[Item], given: Collection[str] = ()) -> dict[int, str]:
    """By place in the list; first come those that have a name that a job can have.

    given: names that other jobs have.
    """
    jobs = [(n, item.name) for n, item in enumerate(items) if isinstance(item, Found)]
    names, taken = dict[int, str](), {*given}
    for place, name in sorted(jobs, key=lambda each: not is_job_name(each[1])):
        names[place] = job_name(name, taken)
        taken.add(names[place])
    return names


def _blocks(item: Item, name: str, written: Written) -> Iterator[str]:
    """name: of the job, if it becomes one."""
    match item:
        case LeftOut():
            yield _left_out(item, written)
        case Found():
            entry = {} if is_job_name(item.name) else {"entry": item.name or None}
            values = without_defaults({**item.values, **entry})
            if fault := fault_of(name, values):
                original = [f"{key}: {value}" for key, value in values.items()]
                yield _left_out(LeftOut(item.source, fault, original), written)
                return
            written.jobs.append(name)
            yield _found(item, written) + job_text(name, values)


def _left_out(item: LeftOut, written: Written) -> str:
    report = f"{item.source}: not translated: {item.why}"
    written.reports.append(one_line(report))
    return _comment(report) + "".join(f"  #   {one_line(line)}\n" for line in item.original)


def _found(item: Found, written: Written) -> str:
    reports = [f"{item.source}: {lost}" for lost in item.lost]
    written.reports += map(one_line, reports)
    return "".join(map(_comment, reports))


def without_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the documented order, without those that are defaults."""
    return {
        key: values[key]
        for key in ORDER
        if values.get(key) is not None and values[key] != DEFAULTS.get(key)
    }


def in_quotes(value: str | Sequence[str]) -> Any:
    return Quoted(value) if isinstance(value, str) else [*map(Quoted, value)]


def job_text(name: str, values: Mapping[str, Any]) -> str:
    """The lines of one job under ``jobs:``; nothing in its arguments is a reference to a secret."""
    literal = {key: escaped(values[key]) for key in ("args", "kwargs") if key in values}
    return entry_text(name, {**values, **literal})


def entry_text(name: str, values: Mapping[str, Any]) -> str:
    """The lines of one job under ``jobs:``, its values as they are."""
    quoted = {key: in_quotes(value) if key in QUOTED else value for key, value in values.items()}
    text = yaml.dump(
        {name: quoted},
        Dumper=_Dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=10**9,
    )
    # What would change how the text beside it is shown is in double quotes, see `_is_plain`.
    shown = (c if c.isprintable() or c == "\n" else f"\\U{ord(c):08X}" for c in text)
    return textwrap.indent("".join(shown), "  ")


def fault_of(name: str, values: Mapping[str, Any]) -> str | None:
    """What `supervisor check` would say about the job, if anything."""
    try:
        document = read("jobs:\n" + job_text(name, values))
    except yaml.YAMLError as error:  # an object of the app's own
        return f"YAML cannot hold it: {error}"
    if document.faults:
        return document.faults[0].what
    _, faults = check_job(name, document.data["jobs"][name], {}, None)
    return "; ".join(fault.what for fault in faults) or None


def one_line(text: str) -> str:
    """The text without characters that would end a comment, or move the cursor of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def _comment(text: str, indent: str = "  ") -> str:
    start = f"{indent}# "
    lines = textwrap.wrap(
        one_line(text), WIDTH - len(start), break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"{start}{line}\n" for line in lines or [""]).replace("# \n", "#\n")


class Quoted(str):
    """Text in double quotes, needed or not."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Sequences indented, no anchors, and text quoted where our reader would not see text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _is_plain(text) and not isinstance(text, Quoted) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


def _is_plain(text: str) -> bool:
    try:
        return isinstance(plain_value(text), str) and text.isprintable()
    except ValueError:  # a number with too many digits
        return False


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Quoted, _text)

# The text of a recurrence rule, for what no cron expression can say.


def rule_text(parts: Mapping[str, Iterable[object]]) -> str:
    """`FREQ=WEEKLY;BYDAY=MO,WE`: the parts that have values, in this order.

    Raises NotTranslatable for a rule that a job cannot have.
    """
    lists = {name: ",".join(map(str, values)) for name, values in parts.items()}
    text = ";".join(f"{name}={value}" for name, value in lists.items() if value)
    try:
        parse(text)
    except InvalidSchedule as error:
        raise NotTranslatable(str(error)) from None
    return text


def rule_for(
    minutes: Collection[int],
    hours: Collection[int],
    days: Collection[int],
    months: Collection[int],
    weekdays: Collection[int],
) -> str:
    """A rule for days that match both their number and their weekday. Sunday is weekday 0.

    The frequency is one whose open parts are all values, so that the rule needs no beginning.
    """
    if not all((minutes, hours, days, months, weekdays)):
        raise NotTranslatable("it never fires: one of its fields is empty")
    open_hours, open_minutes = set(hours) == set(HOURS), set(minutes) == set(MINUTES)
    freq = "MINUTELY" if open_minutes else "HOURLY" if open_hours else "MONTHLY"
    within_days = freq != "MONTHLY"
    return rule_text(
        {
            "FREQ": [freq],
            "BYMONTH": _unless_all(months, MONTHS),
            "BYMONTHDAY": _unless_all(days, DAYS) if within_days else sorted(days),
            "BYDAY": [NAMES[(day - 1) % 7] for day in _unless_all(weekdays, CRON_WEEKDAYS)],
            "BYHOUR": _unless_all(hours, HOURS) if within_days else sorted(hours),
            "BYMINUTE": _unless_all(minutes, MINUTES),
        }
    )


def _unless_all(values: Collection[int], field: range) -> list[int]:
    return [] if set(values) == set(field) else sorted(values)
