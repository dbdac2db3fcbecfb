"""Progress and log lines as text for terminals, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from supervisor.display.shapes import instant
from supervisor.display.words import stamp
from supervisor.runs.progress import LogLine, Progress

#: What colours text or moves the cursor on a terminal.
CONTROL_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")


class LogText:
    """Lines of one log as text; remembers their numbers, to tell how many are not there."""

    def __init__(self) -> None:
        self._last: dict[tuple[str | None, int], int] = {}

    def of(self, lines: Iterable[LogLine]) -> Iterator[str]:
        for line in lines:
            place = (line.step, line.attempt)
            if line.number == 0:  # the ledger's own word
                yield f"{stamp(line.at)}  {label_of(line)}{harmless(line.text)}"
                continue
            dropped = line.number - self._last.get(place, 0) - 1
            self._last[place] = line.number
            if dropped > 0:
                yield f"({dropped:,} {'line' if dropped == 1 else 'lines'} dropped)"
            yield f"{stamp(line.at)}  {label_of(line)}{harmless(line.text)}"


def label_of(line: LogLine) -> str:
    """``load#3, attempt 2: ``, or nothing for a first attempt of a run without steps."""
    attempt = f"attempt {line.attempt}" if line.attempt > 1 else None
    label = ", ".join(filter(None, (line.step, attempt)))
    return f"{label}: " if label else ""


def progress_words(progress: Progress | None) -> str:
    """``40/100 (40%) loading``."""
    if progress is None:
        return ""
    done = f"{progress.done:,}" + ("" if progress.total is None else f"/{progress.total:,}")
    share = "" if progress.share is None else f"({progress.share:.0%})"
    return " ".join(filter(None, (done, share, harmless(progress.text))))


def harmless(text: str) -> str:
    """On one line, and without what a terminal would obey."""
    if text.isprintable():
        return text
    text = CONTROL_SEQUENCE.sub("", text)
    return "".join(c if c.isprintable() else " " for c in text)


def line_shape(line: LogLine) -> dict[str, Any]:
    return {
        "at": instant(line.at),
        "attempt": line.attempt,
        "step": line.step,
        "number": line.number,
        "text": line.text,
    }
