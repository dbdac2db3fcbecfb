"""Silences on the page: those in force, and the buttons that begin and end one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from supervisor.errors import NotFound
from supervisor.features.notices import silences
from supervisor.features.notices.api import NewSilence
from supervisor.features.notices.incidents import SERVICE
from supervisor.job.spec import JobSpec
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.web.access_file import Role
from supervisor.web.buttons import Button, Fields
from supervisor.web.http import validated
from supervisor.web.templating import job_url


def on_first_page(ledger: Ledger, now: datetime) -> dict[str, Any]:
    return {"silences": silences.SilenceStore(ledger).in_force(now)}


def on_job_page(ledger: Ledger, spec: JobSpec, now: datetime) -> dict[str, Any]:
    in_force = silences.SilenceStore(ledger).in_force(now)
    return {"silences": [each for each in in_force if each.covers(spec)]}


def notes(ledger: Ledger, specs: Iterable[JobSpec], now: datetime) -> dict[str, str]:
    in_force = silences.SilenceStore(ledger).in_force(now)
    quiet = silences.silenced({spec.name: spec for spec in specs}, in_force)
    return dict.fromkeys(quiet.keys() - {SERVICE}, "notices silenced")


# The buttons.


def form(ledger: Ledger, job: str) -> dict[str, Any]:
    """Without a job, of a label or of all."""
    about = {"asks": "notices/silence.html", "words": "Silence", "reason_is": ""}
    if not job:
        return {**about, "what": "notices", "spec": None}
    return {**about, "spec": ledger.spec(job), "back": job_url(job)}


def silence(ledger: Ledger, job: str, fields: Fields, by: Actor) -> str:
    """Of a job; without one, of a label or of all. A named end counts before a duration."""
    texts = {name: fields.get(name, "").strip() for name in NewSilence.model_fields}
    given = {name: text for name, text in texts.items() if text}
    if "until" in given:
        given.pop("duration", None)
    body = validated(NewSilence, json.dumps(given | ({"job": job} if job else {})))
    silences.silence(
        ledger,
        body.job,
        body.label,
        until=body.until,
        duration=body.duration,
        by=by,
        reason=body.reason,
    )
    return job_url(job) if job else ""


def form_of_end(ledger: Ledger, target: str) -> dict[str, Any]:
    silence = silence_in_force(ledger, target)
    return {
        "asks": "notices/unsilence.html",
        "words": "End the silence of",
        "submit": "End the silence",
        "what": silence.words,
        "target": silence.id,
    }


def silence_in_force(ledger: Ledger, target: str) -> silences.Silence:
    """Raises NotFound."""
    for each in silences.SilenceStore(ledger).in_force(ledger.now()):
        if target in (each.id, each.target):
            return each
    raise NotFound("this silence has ended")


def unsilence(ledger: Ledger, target: str, fields: Fields, by: Actor) -> str:
    [ended, *_] = silences.unsilence(ledger, target, by=by, reason=fields.get("reason", ""))
    return job_url(ended.job) if ended.job else ""


BEGIN = Button("silence", silence, form, on_job="Silence", on_jobs="Silence notices")
END = Button("unsilence", unsilence, form_of_end)

#: The role that each route takes, and its verb in the record of actions.
ROUTES: Mapping[str, tuple[Role, str]] = {
    "GET /actions/silence/{target:path}": (Role.OPERATOR, ""),
    "POST /actions/silence/{target:path}": (Role.OPERATOR, "silence"),
    "GET /actions/unsilence/{target:path}": (Role.OPERATOR, ""),
    "POST /actions/unsilence/{target:path}": (Role.OPERATOR, "unsilence"),
    "GET /api/v1/silences": (Role.VIEWER, ""),
    "POST /api/v1/silences": (Role.OPERATOR, "silence"),
    "DELETE /api/v1/silences/{silence}": (Role.OPERATOR, "unsilence"),
}
