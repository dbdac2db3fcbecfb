"""What `up` shows on a terminal: a short line for each event of its processes.

The processes log JSON lines. Of each the screen shows the process, and the event as logs.py writes
it for people. Other output, such as that of a program that a job runs, is shown as it is, after the
name of the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, TextIO

import click

from supervisor.logs import escaped, time_of, words_of

#: For the names of processes, in turn.
NAME_COLOURS = ("cyan", "magenta", "blue", "green")

#: Libraries that log at level `info` how they start, and those of their loggers that log tasks.
CHATTY = ("celery", "kombu", "uvicorn")
OF_TASKS = ("celery.app.trace", "celery.worker.strategy")

#: The names of most workers are shorter.
NAME_WIDTH = 14


class Screen:
    """Shows the lines of several processes on one stream. Threads may share it.

    colour: None for colours on a terminal only. is_chatty: also shows what libraries log at level
    `info`.
    """

    def __init__(
        self, stream: TextIO, *, colour: bool | None = None, is_chatty: bool = False
    ) -> None:
        self._stream = stream
        self._colour = colour
        self._is_chatty = is_chatty
        self._names: dict[str, str] = {}
        self._lock = Lock()

    def show(self, process: str, line: str) -> None:
        """Shows a line that the process has written."""
        event = event_of(line)
        if not line or (event and not self._is_chatty and is_chatter(event)):
            return
        with self._lock:
            default = NAME_COLOURS[len(self._names) % len(NAME_COLOURS)]
            colour = self._names.setdefault(process, default)
            name = click.style(f"{process:<{NAME_WIDTH}}", fg=colour)
            for text in words_of(event, time_of(event)) if event else [escaped(line)]:
                click.echo(f"{name} {text}", self._stream, color=self._colour)

    def say(self, lines: Iterable[str]) -> None:
        """Shows lines that no process has written."""
        with self._lock:
            for line in lines:
                click.echo(line, self._stream, color=self._colour)

    def follow(self, process: str, output: Iterable[bytes]) -> None:
        """Shows what the process writes until it ends."""
        for line in output:
            self.show(process, line.decode(errors="replace").rstrip("\n"))


class Lines:
    """A stream that shows the log of this process itself."""

    def __init__(self, screen: Screen, process: str) -> None:
        self._screen = screen
        self._process = process

    def write(self, text: str) -> None:
        """text: whole lines, as log handlers write them."""
        for line in text.splitlines():
            self._screen.show(self._process, line)

    def flush(self) -> None:
        """Does nothing: each line is shown at once."""


def event_of(line: str) -> Mapping[str, Any] | None:
    """The fields of a log line; None for any other."""
    try:
        fields = json.loads(line) if line.startswith("{") else None
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None


def is_chatter(event: Mapping[str, Any]) -> bool:
    """Whether a library logs how it starts, or what happens to a run: our own events say more."""
    logger = str(event.get("logger"))
    is_of_run = "run" in event or "@" in str(event["event"])
    is_info = event.get("level") in ("info", "debug")
    is_of_library = logger.partition(".")[0] in CHATTY
    return is_info and is_of_library and (is_of_run or logger not in OF_TASKS)
