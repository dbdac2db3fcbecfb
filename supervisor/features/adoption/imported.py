"""What an import makes of an app's schedules, and the schedule file of it.

Each job is read back before it is written, so that what comes out loads.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from supervisor.catalog.job_checks import check_job
from supervisor.catalog.job_text import ORDER, entry_text
from supervisor.catalog.schema import DEFAULTS
from supervisor.catalog.yaml_source import read
from supervisor.job.fields import NAME_PATTERN
from supervisor.job.secrets import escaped


@dataclass(frozen=True, slots=True)
class ImportedJob:
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


Item = ImportedJob | LeftOut

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

#: What every source says of a job: only written where it is not the default.
SOURCES_SAY = ("args", "kwargs", "description", "timezone", "paused")


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
    jobs = [(n, item.name) for n, item in enumerate(items) if isinstance(item, ImportedJob)]
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
        case ImportedJob():
            entry = {} if is_job_name(item.name) else {"entry": item.name or None}
            values = without_defaults({**item.values, **entry})
            if fault := fault_of(name, values):
                original = [f"{key}: {value}" for key, value in values.items()]
                yield _left_out(LeftOut(item.source, fault, original), written)
                return
            written.jobs.append(name)
            yield _reports_of(item, written) + job_text(name, values)


def _left_out(item: LeftOut, written: Written) -> str:
    report = f"{item.source}: not translated: {item.why}"
    written.reports.append(one_line(report))
    return _comment(report) + "".join(f"  #   {one_line(line)}\n" for line in item.original)


def _reports_of(item: ImportedJob, written: Written) -> str:
    reports = [f"{item.source}: {lost}" for lost in item.lost]
    written.reports += map(one_line, reports)
    return "".join(map(_comment, reports))


def without_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in the documented order, without those that are defaults."""
    return {
        key: values[key]
        for key in ORDER
        if values.get(key) is not None and not (key in SOURCES_SAY and values[key] == DEFAULTS[key])
    }


def job_text(name: str, values: Mapping[str, Any]) -> str:
    """The lines of one job under ``jobs:``; nothing in its arguments is a reference to a secret."""
    literal = {key: escaped(values[key]) for key in ("args", "kwargs") if key in values}
    return entry_text(name, {**values, **literal})


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
