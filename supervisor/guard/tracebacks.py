"""The traceback of a failed attempt, as text that is kept with its run."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import dropwhile
from traceback import StackSummary, TracebackException

#: Bytes; of a longer one the end is kept, where the exception stands.
LARGEST = 8 * 1024

#: Innermost frames of each exception.
MOST_FRAMES = 50

#: What calls the task's code, in front of it.
CALLERS = re.compile(r"[/\\](supervisor[/\\](guard|worker)|celery[/\\]app)[/\\]\w+\.py$")


def traceback_text(error: BaseException, hide: Callable[[str], str]) -> str:
    """From the task's own code on, with what the exception was raised from. No variables.

    hide: makes of a text one that may be shown.
    """
    found = TracebackException.from_exception(error, limit=-MOST_FRAMES, compact=True)
    leave_out_callers(found)
    return end_of(hide("".join(found.format())))


def leave_out_callers(found: TracebackException | None) -> None:
    """Of this exception, and of those that it was raised from; all frames stay if none is left."""
    if found is None:
        return
    own = dropwhile(lambda frame: CALLERS.search(frame.filename), found.stack)
    found.stack = StackSummary.from_list(list(own)) or found.stack
    leave_out_callers(found.__cause__)
    leave_out_callers(found.__context__)


def end_of(text: str) -> str:
    data = text.encode(errors="replace")
    if len(data) <= LARGEST:
        return data.decode()
    return f"({len(data) - LARGEST:,} bytes before this left out)\n" + data[-LARGEST:].decode(
        errors="ignore"
    )
