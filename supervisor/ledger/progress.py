"""Progress and log lines of runs: written while they run, read by people."""

from __future__ import annotations

import json
from collections.abc import Mapping

from supervisor.job.run import Failure, LogLine, Progress, Reported, log_place, parse_number
from supervisor.ledger.connection import Client
from supervisor.ledger.functions import Functions
from supervisor.ledger.keys import Keys
from supervisor.ledger.replies import instant


class Reports:
    def __init__(self, client: Client, keys: Keys, functions: Functions) -> None:
        self._client = client
        self._keys = keys
        self._functions = functions

    def write(self, run_id: str, token: str, said: Reported, now: float) -> bool:
        """Whether the token's attempt is the running one; `now`: by the clock of the report."""
        whole, step = log_place(run_id)
        facts: list[str | int] = [run_id, token, said.batch, whole, step or ""]
        if (progress := said.progress) is None:
            facts += ("", "", "", 0)
        else:
            total = "" if progress.total is None else repr(progress.total)
            facts += (repr(progress.done), total, progress.text, ms_between(progress.at, now))
        for line in said.lines:
            facts += (line.number, line.text, ms_between(line.at, now))
        return bool(self._functions("report", *facts))

    def lines(self, run_id: str, after: str | None = None) -> list[LogLine]:
        """The run's log, all attempts, oldest first; `after`: the id of the last line known.

        Of a step of a run, its own lines; of a batch, those of its items.
        """
        whole, step = log_place(run_id)
        start = f"({after}" if after else "-"
        entries = self._client.xrange(self._keys.log(whole), min=start)
        lines = [line_from(line_id, fields) for line_id, fields in entries]
        return [line for line in lines if step is None or is_of(line.step, step)]

    def failures(self, run_id: str) -> list[Failure]:
        """How the run failed, and its steps and items, oldest first; of a step, only itself."""
        whole, step = log_place(run_id)
        texts = self._client.hgetall(self._keys.tracebacks(whole))
        found = [failure_from(label or None, text) for label, text in texts.items()]
        own = [failure for failure in found if step is None or is_of(failure.step, step)]
        return sorted(own, key=lambda failure: (failure.at, failure.step or ""))


def is_of(label: str | None, step: str) -> bool:
    return label is not None and (label == step or label.startswith(f"{step}#"))


def ms_between(at: float, now: float) -> int:
    return max(0, round((now - at) * 1000))


def line_from(line_id: str, fields: Mapping[str, str]) -> LogLine:
    return LogLine(
        id=line_id,
        at=instant(fields["at"]),
        attempt=int(fields["attempt"]),
        number=int(fields["number"]),
        text=fields["text"],
        step=fields.get("step"),
    )


def failure_from(step: str | None, text: str) -> Failure:
    fields = json.loads(text)
    return Failure(int(fields["attempt"]), instant(fields["at"]), fields["text"], step)


def progress_from(fields: Mapping[str, str], attempt: int) -> Progress | None:
    """From a run's hash; each attempt starts without."""
    if fields.get("progress_attempt") != str(attempt):
        return None
    total = fields["progress_total"]
    return Progress(
        done=parse_number(fields["progress_done"]),
        total=parse_number(total) if total else None,
        text=fields["progress_text"],
        at=instant(fields["progress_at"]),
    )
