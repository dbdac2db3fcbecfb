"""A run, made of its hash."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from supervisor.job.reports import Progress, parse_number
from supervisor.job.run import Batch, Message, Obstacle, Run, RunAttempt, RunRules, RunState
from supervisor.times import instant, optional_instant


def run_from(run_id: str, fields: Mapping[str, str]) -> Run:
    state = RunState(fields["state"])
    number = int(fields.get("attempt", 0))
    return Run(
        id=run_id,
        job=fields["job"],
        state=state,
        nominal_at=instant(fields["nominal"]),
        queued_at=instant(fields["queued"]),
        started_at=optional_instant(fields.get("started")),
        finished_at=optional_instant(fields.get("finished")),
        attempt=number,
        crashes=int(fields.get("crashes", 0)),
        requeues=int(fields.get("requeues", 0)),
        fencing_token=int(fields["fence"]) if "fence" in fields else None,
        reason=fields.get("reason") or None,
        blocked_by=fields.get("blocked_by") or None,
        overlapped_with=fields.get("overlapped_with") or None,
        due_at=optional_instant(fields.get("due")),
        worker=fields.get("worker") or None,
        sent_at=optional_instant(fields.get("sent")),
        sends=int(fields.get("sends", 0)),
        ticks=int(fields.get("ticks", 1)),
        first_nominal_at=optional_instant(fields.get("first_nominal")),
        attempts=tuple(attempts_from(fields)),
        has_steps="steps" in fields,
        error_step=fields.get("error_step"),
        foreach=fields.get("foreach"),
        batch=batch_from(fields) if "total" in fields else None,
        returned_twice={n: by.split(",") for n, by in starting_with("conflict:", fields).items()},
        args=json.loads(fields["args"]) if "args" in fields else None,
        kwargs=json.loads(fields["kwargs"]) if "kwargs" in fields else None,
        options=options_from(fields),
        references=json.loads(fields.get("references", "[]")),
        rules=rules_from(fields),
        progress=progress_from(fields, number),
        duplicates=int(fields.get("duplicates", 0)),
        obstacle=obstacle_from(fields),
        note=fields.get("note"),
        queue=fields.get("queue") or None,
        expires_at=optional_instant(fields.get("expires")),
        waits_for_others="waits_for_others" in fields,
        after=fields.get("after"),
        is_follower=fields.get("kind") == "after",
        message=Message.of(fields["message"]) if "message" in fields else None,
        repeats=fields.get("repeats"),
        repeated_by=lines_of(fields.get("repeated_by")),
        content=fields.get("content"),
    )


def rules_from(fields: Mapping[str, str]) -> RunRules:
    """Those of a run that has ended are what people are shown with it."""
    rules = RunRules.model_validate_json(fields.get("rules", "{}"))
    return rules.model_copy(update={"lock": fields["lock"]}) if "lock" in fields else rules


def obstacle_from(fields: Mapping[str, str]) -> Obstacle | None:
    if "obstacle" not in fields:
        return None
    line = json.loads(fields["obstacle"])
    return Obstacle(instant(line["at"]), line["by"], int(line["times"]), line["text"])


def attempts_from(fields: Mapping[str, str]) -> Iterator[RunAttempt]:
    """Ended attempts are written down; the one that is running is not yet."""
    for line in lines_of(fields.get("attempts")):
        yield attempt_from(json.loads(line))
    if fields["state"] == RunState.RUNNING:
        number = int(fields.get("attempt", 0))
        yield RunAttempt(number, instant(fields["started"]), fields.get("worker", ""))


def attempt_from(line: Mapping[str, Any]) -> RunAttempt:
    return RunAttempt(
        number=int(line["number"]),
        started_at=instant(line["started"]),
        worker=line["worker"],
        finished_at=instant(line["finished"]),
        outcome=line["outcome"],
        reason=line["reason"] or None,
    )


def progress_from(fields: Mapping[str, str], attempt: int) -> Progress | None:
    """The progress from a run's hash; each attempt starts without any."""
    if fields.get("progress_attempt") != str(attempt):
        return None
    total = fields["progress_total"]
    return Progress(
        done=parse_number(fields["progress_done"]),
        total=parse_number(total) if total else None,
        text=fields["progress_text"],
        at=instant(fields["progress_at"]),
    )


def options_from(fields: Mapping[str, str]) -> dict[str, Any]:
    """The options of the call, overridden by those of each retry; so is each of the headers."""
    options: dict[str, Any] = {}
    headers: dict[str, Any] = {}
    for line in (fields.get("options", "{}"), *lines_of(fields.get("retry_options"))):
        options |= json.loads(line)
        headers |= options.pop("headers", None) or {}
    return {**options, "headers": headers} if headers else options


def batch_from(fields: Mapping[str, str]) -> Batch:
    ended = {outcome: int(count) for outcome, count in starting_with("items:", fields).items()}
    return Batch(int(fields["total"]), ended)


def starting_with(prefix: str, fields: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}


def lines_of(text: str | None) -> list[str]:
    """The lines that a function wrote, each with its end.

    Not `splitlines`: what jobs raise is within them, and cjson leaves U+2028 and the like as it is.
    """
    return text.removesuffix("\n").split("\n") if text else []
