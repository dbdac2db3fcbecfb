"""Templates -> the texts of files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

Files = Mapping[str, str]
"""What is rendered: paths below the output directory, and their text."""


class Templates:
    """The templates of one target."""

    def __init__(self, target: str, **shared: Any) -> None:
        self._environment = Environment(
            loader=PackageLoader("supervisor.render", f"templates/{target}"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self._environment.filters.update(
            text=text, flow=flow, unit=unit, unit_word=unit_word, unit_command=unit_command
        )
        self._environment.globals.update(shared)

    def add_filters(self, **filters: Callable[..., str]) -> None:
        self._environment.filters.update(filters)

    def render(self, name: str, **values: Any) -> str:
        return self._environment.get_template(f"{name}.j2").render(values)


def text(value: str) -> str:
    """A text in YAML, on one line."""
    line = yaml.safe_dump(value, default_style='"', allow_unicode=True, width=sys.maxsize)
    return str(line).removesuffix("\n")


def flow(values: Iterable[str]) -> str:
    return f"[{', '.join(map(text, values))}]"


def unit(value: str) -> str:
    """A text in a unit file as it is: % begins a specifier there."""
    return value.replace("%", "%%")


def unit_word(value: str) -> str:
    """One of several words in a unit file, in quotes where it needs them."""
    escaped = unit(value.replace("\\", "\\\\").replace('"', '\\"'))
    plain = escaped and not any(char.isspace() or char in "\"'\\;" for char in value)
    return escaped if plain else f'"{escaped}"'


def unit_command(arguments: Iterable[str]) -> str:
    """A command line of ExecStart=, where $ begins a variable too."""
    return " ".join(unit_word(argument.replace("$", "$$")) for argument in arguments)
