"""A ping over HTTP, in the form of healthchecks.io: the address says what happened, the body why.

``POST <url>/start?rid=<uuid>``, ``<url>``, ``<url>/fail``, ``<url>/log``. The `rid` is the same
for all pings of a run, so that the check knows its duration even if runs overlap, and knows a ping
that is sent a second time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid5

from supervisor.beat.turn import BeatContext, Part
from supervisor.errors import SecretMissing
from supervisor.features.outbound.answer import Answer
from supervisor.features.outbound.http import post
from supervisor.features.outbound.sender import Result
from supervisor.features.outbound.store import Kind, ReportKind, RunReport, Unsent
from supervisor.job.fields import is_address
from supervisor.job.secrets import resolved
from supervisor.ledger.ledger import Ledger
from supervisor.times import render_duration

#: Run ids become UUIDs in it.
NAMESPACE = UUID("6d1f9bb4-70c1-5a4c-9f5e-0b3f1a6f1c53")

PATHS = {
    ReportKind.START: "/start",
    ReportKind.SUCCESS: "",
    ReportKind.FAIL: "/fail",
    ReportKind.LOG: "/log",
}

HEADERS = {"Content-Type": "text/plain; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Pings:
    """Sends to the `ping_url` that a job has by now."""

    ledger: Ledger

    def send(self, entry: Unsent) -> Result:
        report = RunReport.model_validate_json(entry.text)
        spec = self.ledger.some_specs([report.job]).get(report.job)
        if spec is None or spec.ping_url is None:
            return Result(Answer.UNWANTED)
        fields = {"job": report.job, "run": report.run, "kind": report.kind.value}
        try:
            url = address(address_of(spec.ping_url), report)
        except SecretMissing as missing:
            return Result(Answer.UNAVAILABLE, str(missing), fields)
        return Result(*post(url, body(report).encode(), HEADERS), fields)


def address_of(url: str) -> str:
    """Secrets in place of references. Raises SecretMissing."""
    target = str(resolved(url, os.environ))
    if not is_address(target):
        raise SecretMissing("ping_url", "what it stands for is no http or https address")
    return target


def address(url: str, report: RunReport) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, f"rid={uuid5(NAMESPACE, report.run)}")))
    path = parts.path.rstrip("/") + PATHS[report.kind]
    return urlunsplit(parts._replace(path=path, query=query))


def body(report: RunReport) -> str:
    fields = {
        "run": report.run,
        "outcome": report.outcome,
        "reason": report.reason,
        "attempt": str(report.attempt) if report.attempt else "",
        "duration": render_duration(report.lasted) if report.attempt else "",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def part(beat: BeatContext) -> Part:
    beat.senders[Kind.PING] = Pings(beat.ledger).send
    return Part()
