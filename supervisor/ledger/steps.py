"""Runs of several steps: their plans, their params, and their batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from supervisor.job.run import StepId, StepRecord
from supervisor.job.steps import Step
from supervisor.ledger.functions import Functions
from supervisor.ledger.reads import Readings

#: Items sent in one call: few enough not to block the server.
ITEMS_PER_CALL = 500


class Steps:
    def __init__(self, reads: Readings, functions: Functions) -> None:
        self._reads = reads
        self._keys = reads.keys
        self._functions = functions

    def plans(self, run_ids: Iterable[str]) -> dict[str, dict[str, Step]]:
        """By run id and by name of the step, in the order of the job; of runs that have any."""
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
        runs = {run.id: run for run in self._reads.runs([f"{run_id}/{s.name}" for s in steps])}
        return [
            StepRecord(step.name, step.task, step.priority, runs.get(f"{run_id}/{step.name}"))
            for step in steps
        ]

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

    def param(self, run_id: str, name: str) -> Any:
        """One of them; None when there is none of that name."""
        text = self._reads.client.hget(self._keys.params(run_id), name)
        return None if text is None else json.loads(text)

    def below(self, run_ids: Sequence[str]) -> list[str]:
        """Ids of the steps of these runs that are open."""
        replies = self._reads.read_each(
            run_ids, lambda pipe, run_id: pipe.smembers(self._keys.below(run_id))
        )
        return [below for _, found in replies for below in found]

    def expand(self, batch: str, items: Sequence[Any]) -> list[str]:
        """Hands a batch its items; gives the ids of the first that may be published now.

        Repeated, also by another process at the same time, it changes nothing.
        """
        for offset in range(0, max(1, len(items)), ITEMS_PER_CALL):
            chunk = [json.dumps(item) for item in items[offset : offset + ITEMS_PER_CALL]]
            verdict, *next_up = self._functions("expand", batch, len(items), offset, *chunk)
            if verdict != "more":
                return list(next_up)
        return []

    def fill(self, batch: str) -> list[str]:
        """Ids of further items that may be published now; none when enough are open."""
        return list(self._functions("fill", batch))

    def items(self, run_ids: Sequence[str]) -> dict[str, tuple[Any]]:
        """Of the runs that are for an item of a batch: that item."""
        step_ids = [step_id for run_id in run_ids if (step_id := StepId.of(run_id))]
        texts = self._reads.read_each(
            [(step_id.batch, step_id.item) for step_id in step_ids if step_id.item is not None],
            lambda pipe, item: pipe.lindex(self._keys.items(item[0]), item[1]),
        )
        return {f"{batch}#{item}": (json.loads(text),) for (batch, item), text in texts if text}
