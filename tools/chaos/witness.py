"""What the witness file says: who worked for what, from when to when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.written import json_lines
from tools.chaos.chronicle import Kind, Window
from tools.chaos.intervals import Interval, without

#: When a process that lived at a moment ended, if it did.
Death = Callable[[int, float], float | None]


@dataclass(frozen=True, slots=True)
class Execution:
    """One start of a task's body."""

    job: str
    run: str
    attempt: int
    pid: int
    group: int
    whole: Interval

    end: str
    """How it ended: end, fail, interrupted, died, or open when it had not."""

    at_work: tuple[Interval, ...]
    """Its time from start to end without the stretches in which its process was frozen."""

    token: int = 0
    """What it was given for fencing."""

    version: int = 0
    """Of the job, as its message said."""

    @property
    def is_done(self) -> bool:
        """Whether its body came to its end, well or not."""
        return self.end in ("end", "fail")


def executions(
    path: Path, death: Death, windows: Sequence[Window], until: float
) -> list[Execution]:
    """All that the witness saw, by their start."""
    by_attempt: dict[tuple[int, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines_of(path):
        by_attempt[attempt_of(line)].append(line)
    found = [e for signs in by_attempt.values() for e in of_one(signs, death, windows, until)]
    return sorted(found, key=lambda execution: execution.whole)


def of_one(
    signs: Sequence[Mapping[str, Any]], death: Death, windows: Sequence[Window], until: float
) -> Iterable[Execution]:
    """The body of an attempt that began twice has signs of both: a start goes with the next."""
    for start, following in zip(signs, [*signs[1:], None], strict=True):
        if start["event"] != "start":
            continue
        if following and following["event"] != "start" and following["run"] == start["run"]:
            end, ended_at = following["event"], following["at"]
        else:
            died_at = death(start["pid"], start["at"])
            end, ended_at = ("open", until) if died_at is None else ("died", died_at)
            ended_at = max(ended_at, start["at"])
        whole = Interval(start["at"], ended_at)
        frozen = [w.interval for w in windows if frozen_by(w, start["group"])]
        yield Execution(
            job=start["job"],
            run=start["run"],
            attempt=start["attempt"],
            pid=start["pid"],
            group=start["group"],
            whole=whole,
            end=end,
            at_work=tuple(without(whole, frozen)),
            token=start["token"],
            version=start.get("version", 0),
        )


def messages(path: Path) -> dict[str, list[float]]:
    """When workers took messages, by run."""
    instants = defaultdict[str, list[float]](list)
    for line in lines_of(path):
        instants[line["run"]].append(line["at"])
    return instants


def at_work(path: Path) -> set[int]:
    """The processes in which an attempt has started, and has not said that it ended."""
    last = {attempt_of(line): line["event"] for line in lines_of(path)}
    return {pid for (pid, *_), event in last.items() if event == "start"}


def groups_at_work(path: Path, job: str) -> set[int]:
    """The process groups of the workers in which a run of the job has started, and not ended."""
    last = {attempt_of(line): line for line in lines_of(path) if line["job"] == job}
    return {line["group"] for line in last.values() if line["event"] == "start"}


def attempt_of(line: Mapping[str, Any]) -> tuple[int, str, int]:
    """A process may work for several at once, if its pool has no processes for them."""
    return line["pid"], line["run"], line["token"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return json_lines(path)


def frozen_by(window: Window, group: int) -> bool:
    return window.kind is Kind.FROZEN and window.group == group
