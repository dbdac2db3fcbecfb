"""What belongs to runs beside their records: steps, params and items; progress, log, tracebacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from supervisor.errors import UnknownRun
from supervisor.job.reports import Failure, LogLine, Reported, log_place
from supervisor.job.run import StepRecord
from supervisor.job.run_ids import StepId
from supervisor.job.steps import Step
from supervisor.ledger.functions import document
from supervisor.ledger.reader import Reader
from supervisor.ledger.run_reads import RunReads
from supervisor.times import instant

#: Items sent in one call: few enough not to block the server.
ITEMS_PER_CALL = 500


class Steps:
    def __init__(self, reads: RunReads) -> None:
        self._reads = reads
        self._keys = reads.keys
        self._functions = reads.functions

    def plans(self, run_ids: Iterable[str]) -> dict[str, dict[str, Step]]:
        """The steps of each run that has any, by name and in the order of the job."""
        return {
            run_id: {step["name"]: Step.of(step) for step in json.loads(text)["steps"]}
            for run_id, text in self._reads.read_fields(run_ids, "steps")
            if text
        }

    def options(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Options for the messages of these runs, which are sent with those of their steps."""
        texts = self._reads.read_fields(run_ids, "options")
        return {run_id: json.loads(text) for run_id, text in texts if text}

    def records(self, run_id: str) -> list[StepRecord]:
        """The steps of a run, in the order in which they run; none for a run of one task."""
        planned = self.plans([run_id]).get(run_id, {})
        steps = sorted(planned.values(), key=lambda step: -step.priority)
        ids = {step.name: step.done or f"{run_id}~{step.name}" for step in steps}
        runs = {run.id: run for run in self._reads.runs([*ids.values()])}
        return [
            StepRecord(s.name, s.task, s.priority, runs.get(ids[s.name]), s.done or None)
            for s in steps
        ]

    def plan(self, run_id: str) -> dict[str, Any]:
        """The plan of a run of several steps, as job/steps.py makes it. Raises UnknownRun."""
        text = self._reads.client.hget(self._keys.run(run_id), "steps")
        if text is None:
            raise UnknownRun(run_id)
        plan: dict[str, Any] = json.loads(text)
        return plan

    def item_states(self, batch: str) -> str:
        """A letter for each item, as in stages.lua; a dot while it has not ended."""
        return str(self._reads.client.get(self._keys.states(batch)) or "")

    def kept_items(self, batch: str, limit: int = 20) -> list[str]:
        """Ids of items that have a record of their own, in order: they did not end well."""
        numbers = sorted(map(int, self._reads.client.smembers(self._keys.kept(batch))))
        return [f"{batch}#{number}" for number in numbers[:limit]]

    def params(self, run_id: str) -> Mapping[str, str]:
        """What the present stage of the run was handed: name -> JSON."""
        return self._reads.client.hgetall(self._keys.params(run_id))

    def began_with(self, run_id: str) -> Mapping[str, str] | None:
        """The params that the run began with; None if they were too large to be kept."""
        text = self._reads.client.hget(self._keys.run(run_id), "began_with")
        if text is None:  # no step has returned anything
            return self.params(run_id)
        return dict(json.loads(text)) if text else None

    def param(self, run_id: str, name: str) -> Any:
        """One of these params; None if there is none of that name."""
        text = self._reads.client.hget(self._keys.params(run_id), name)
        return None if text is None else json.loads(text)

    def below(self, run_ids: Sequence[str]) -> list[str]:
        """Ids of the steps of these runs that are open."""
        replies = self._reads.read_each(
            run_ids, lambda pipe, run_id: pipe.smembers(self._keys.below(run_id))
        )
        return [below for _, steps in replies for below in steps]

    def expand(self, batch: str, items: Sequence[Any]) -> list[str]:
        """Hands a batch its items; gives the ids of the first that may be published now.

        Repeated, also by another process at the same time, it changes nothing.
        """
        for offset in range(0, max(1, len(items)), ITEMS_PER_CALL):
            call = {
                "run_id": batch,
                "total": len(items),
                "offset": offset,
                "items": [json.dumps(item) for item in items[offset : offset + ITEMS_PER_CALL]],
            }
            reply, *next_up = self._functions("expand", document(call))
            if reply != "more":
                return list(next_up)
        return []

    def fill(self, batch: str) -> list[str]:
        """Ids of further items that may be published now; none when enough are open."""
        return list(self._functions("fill", batch))

    def items(self, run_ids: Sequence[str]) -> dict[str, tuple[Any]]:
        """The items of those runs that are for an item of a batch."""
        step_ids = [step_id for run_id in run_ids if (step_id := StepId.of(run_id))]
        texts = self._reads.read_each(
            [(step_id.batch, step_id.item) for step_id in step_ids if step_id.item is not None],
            lambda pipe, item: pipe.lindex(self._keys.items(item[0]), item[1]),
        )
        return {f"{batch}#{item}": (json.loads(text),) for (batch, item), text in texts if text}


# Progress and log lines: written while runs run, read by people.


class Reports:
    def __init__(self, ledger: Reader) -> None:
        self._client = ledger.client
        self._keys = ledger.keys
        self._functions = ledger.functions

    def write(self, run_id: str, token: str, report: Reported, now: float) -> bool:
        """Whether the token's attempt is the running one; `now`: by the clock of the report."""
        whole, step = log_place(run_id)
        call: dict[str, Any] = {
            "run_id": run_id,
            "token": token,
            "number": report.batch,
            "log": whole,
            "lines": [
                {"number": line.number, "text": line.text, "ago": ms_between(line.at, now)}
                for line in report.lines
            ],
        }
        if step:
            call["step"] = step
        if progress := report.progress:
            call["progress"] = {
                "done": repr(progress.done),
                "text": progress.text,
                "ago": ms_between(progress.at, now),
            }
            if progress.total is not None:
                call["progress"]["total"] = repr(progress.total)
        return bool(self._functions("report", document(call)))

    def lines(self, run_id: str, after: str | None = None) -> list[LogLine]:
        """The run's log, all attempts, oldest first; `after`: the id of the last line known.

        For a step, only its own lines; for a batch, those of its items.
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
        failures = [failure_from(label or None, text) for label, text in texts.items()]
        own = [failure for failure in failures if step is None or is_of(failure.step, step)]
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
