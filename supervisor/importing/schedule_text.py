"""Jobs as the text of a schedule file: block style, keys in the order of the documentation.

Each job is read back before it is written, so that what comes out loads.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from supervisor.files.job_checks import check_job
from supervisor.files.yaml_source import plain_value, read
from supervisor.importing.found import Found, Item, LeftOut, Remark
from supervisor.importing.names import job_name
from supervisor.job.references import escaped

WIDTH = 96

ORDER = (
    "task",
    "args",
    "kwargs",
    "description",
    "cron",
    "every",
    "phase",
    "rrule",
    "timezone",
    "start_at",
    "paused",
    "queue",
    "start_deadline",
    "soft_time_limit",
    "time_limit",
)

#: Keys whose values are quoted, needed or not, as they are in the documentation.
QUOTED = ("cron", "rrule")

#: What a job has without the key.
UNSAID = {"args": [], "kwargs": {}, "description": "", "timezone": "UTC", "paused": False}


@dataclass(slots=True)
class Written:
    """text: of the file; jobs: names of those in it; reports: what is not translated, and why."""

    text: str = ""
    jobs: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


def write(header: Sequence[str], items: Iterable[Item]) -> Written:
    """The schedule file for what was found. The same input gives the same text."""
    written = Written()
    blocks = [block for item in items for block in _blocks(item, written)]
    head = "".join(_comment(line, "") for line in header)
    jobs = "jobs:\n" if written.jobs else "jobs: {}\n"
    written.text = f"{head}\n{jobs}" + "\n".join(blocks)
    return written


def _blocks(item: Item, written: Written) -> Iterator[str]:
    match item:
        case Remark():
            yield "".join(map(_comment, item.lines))
        case LeftOut():
            yield _left_out(item, written)
        case Found():
            name = job_name(item.name, written.jobs)
            values = said(item.values)
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
    return "".join(map(_comment, [*item.comments, *reports]))


def said(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values in order, without those that a job has anyway."""
    return {
        key: values[key]
        for key in ORDER
        if values.get(key) is not None and values[key] != UNSAID.get(key)
    }


def job_text(name: str, values: Mapping[str, Any]) -> str:
    """The lines of one job under ``jobs:``."""
    quoted = {key: Quoted(value) if key in QUOTED else value for key, value in values.items()}
    quoted |= {key: escaped(values[key]) for key in ("args", "kwargs") if key in values}
    text = yaml.dump(
        {name: quoted},
        Dumper=_Dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=10**9,
    )
    return textwrap.indent(text, "  ")


def fault_of(name: str, values: Mapping[str, Any]) -> str | None:
    """What `supervisor check` would say of the job; None when nothing."""
    document = read("jobs:\n" + job_text(name, values))
    if document.faults:
        return document.faults[0].what
    _, faults = check_job(name, document.data["jobs"][name], {}, None)
    return "; ".join(fault.what for fault in faults) or None


def one_line(text: str) -> str:
    """Without what would end a comment, or move the cursor of who reads the report."""
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
    """Sequences indented, no anchors, and text quoted where our reader would see no text."""

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
    except ValueError:  # a number that is too long to be read as one
        return False


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Quoted, _text)
