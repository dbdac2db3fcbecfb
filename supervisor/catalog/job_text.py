"""Jobs as the text of a schedule file: block style, keys in the order of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from supervisor.catalog.job_checks import KEYS
from supervisor.catalog.yaml_source import plain_value

#: What a job does and when comes first; the other keys are in the order of the documentation.
FIRST = (
    *("entry", "task", "steps", "params", "args", "kwargs", "description"),
    *("cron", "every", "phase", "rrule", "at", "timezone", "start_at", "end_at"),
    *("run_at_start", "paused"),
)
ORDER = tuple(dict.fromkeys((*FIRST, *KEYS)))

#: Keys whose values are quoted, needed or not, as they are in the documentation.
QUOTED = ("cron", "rrule")


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


def in_quotes(value: str | Sequence[str]) -> Any:
    return Quoted(value) if isinstance(value, str) else [*map(Quoted, value)]


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
