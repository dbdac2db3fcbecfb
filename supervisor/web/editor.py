"""The pages that make and edit jobs at run time.

The form is checked while it is filled in: the page's script sends it to `actions/check` and shows
the answer. Without the script its button does the same. Saving names the version that the form was
made of; if another was saved since, nothing is saved, and the form comes back with what differs and
with the version that a second try would replace.

The keys that most jobs have are fields of their own; all others are one field, which is read as a
schedule file is. So the form has every key that a schedule file has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import InvalidJob, JobConflict, JobElsewhere, NotConfigured, TooManyJobs
from supervisor.files.yaml_source import UNREADABLE, plain_value, read
from supervisor.job.changes import Edit
from supervisor.job.policies import OverlapPolicy
from supervisor.ledger.ledger import Ledger
from supervisor.operate.job_edits import Document, JobEdits, Verdict, document_text
from supervisor.web.http import (
    TEMPLATES,
    Refused,
    Threads,
    actor_of,
    form_endpoint,
    job_url,
    loads,
    place_of,
    root_of,
)

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a form was not saved. version: that of the other edit; 0 where the job is gone.

    keys: what the other saved. edits: from there to what the form says, if that is a job.
    """

    text: str
    version: int
    keys: str = ""
    edits: tuple[Edit, ...] = ()


class Editor:
    def __init__(self, ledger: Ledger, jobs: JobEdits) -> None:
        self._ledger = ledger
        self._jobs = jobs

    def new(self, request: Request, _: Fields) -> Response:
        return self._form(request, {"version": "0"})

    def edit(self, request: Request, _: Fields) -> Response:
        """The form of a job, or the reason why the job is not edited here."""
        name = request.path_params["target"]
        job = self._jobs.job(name)
        if not job.is_editable:
            raise Refused(409, f"{name} is not edited here: it is from {job.origin.place}")
        fields = fields_of(self._jobs.shown(job)) | {"version": str(job.origin.version)}
        return self._form(request, {**fields, "name": name, "edits": name})

    def check(self, request: Request, fields: Fields) -> Response:
        verdict = self._verdict(fields)
        if "part" not in request.query_params:
            return self._form(request, fields, verdict)
        template = TEMPLATES.get_template("parts/verdict.html")
        return HTMLResponse(template.render(verdict=verdict, now=self._ledger.now()))

    def save(self, request: Request, fields: Fields) -> Response:
        name = fields.get("name", "").strip()
        try:
            document = document_in(fields)
            version, reason = version_in(fields), fields.get("reason", "")
            self._jobs.save(name, document, version, actor_of(request), reason)
        except JobConflict as error:
            verdict = self._verdict(fields)
            conflict = self._conflict(name, fields, error, verdict)
            seen = {**fields, "version": str(conflict.version)}
            return self._form(request, seen, verdict, 409, conflict)
        except (InvalidForm, InvalidJob) as error:
            return self._form(request, fields, Verdict(tuple(error.problems)), 422)
        except (JobElsewhere, TooManyJobs, NotConfigured) as error:
            return self._form(request, fields, Verdict((str(error),)), 409)
        return RedirectResponse(f"{root_of(request)}/{job_url(name)}", 303)

    def _verdict(self, fields: Fields) -> Verdict:
        try:
            document = document_in(fields)
        except InvalidForm as error:
            return Verdict(tuple(error.problems))
        return self._jobs.verdict(fields.get("name", "").strip(), document)

    def _conflict(
        self, name: str, fields: Fields, error: JobConflict, verdict: Verdict
    ) -> Conflict:
        """What the form would change in the version that was saved meanwhile."""
        if not error.version:
            return Conflict(f"{name} was removed while you edited it.", 0)
        theirs = self._jobs.job(name)
        place, keys = theirs.origin.place, document_text(self._jobs.shown(theirs))
        is_edited = f"Another saved {name} while this form was open"
        text = f"{is_edited if fields.get('edits') else f'There is a job {name} already'}: {place}."
        return Conflict(text, error.version, keys, verdict.plan.edits if verdict.plan else ())

    def _form(
        self,
        request: Request,
        fields: Fields,
        verdict: Verdict | None = None,
        status: int = 200,
        conflict: Conflict | None = None,
    ) -> Response:
        text = TEMPLATES.get_template("editor.html").render(
            name=fields.get("edits", ""),
            fields=fields,
            verdict=verdict,
            conflict=conflict,
            kinds=TIMES,
            policies=[policy.value for policy in OverlapPolicy],
            tasks=sorted(self._jobs.known_tasks()),
            now=self._ledger.now(),
            may_act=True,
            **place_of(request),
        )
        return HTMLResponse(text, status)


def version_in(fields: Fields) -> int:
    """Raises Refused."""
    text = fields.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise Refused(400, "the form does not say which version it was made of")
    return int(text)


def editor_routes(ledger: Ledger, jobs: JobEdits, threads: Threads) -> list[Route]:
    editor = Editor(ledger, jobs)

    return [
        Route("/actions/new", form_endpoint(threads, editor.new)),
        Route("/actions/edit/{target:path}", form_endpoint(threads, editor.edit)),
        Route("/actions/check", form_endpoint(threads, editor.check), methods=["POST"]),
        Route("/actions/put", form_endpoint(threads, editor.save), methods=["POST"]),
    ]


# The keys of a job as the fields of a form, and back.


#: Schedules that are one line of text; others are among the further keys.
TIMES = ("every", "cron", "rrule")

#: Keys that are texts as they are written.
TEXTS = ("task", "description", "timezone", "overlap", "queue")

#: Keys that are numbers or durations: 3, 90s, 5m.
AMOUNTS = ("max_retries", "time_limit")

#: Keys that are JSON, as when a job is triggered.
JSONS = {"args": list, "kwargs": dict}


class InvalidForm(Exception):
    """The fields cannot be read; `problems` has all reasons."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def fields_of(document: Document) -> dict[str, str]:
    """The document as the fields of a form."""
    rest = dict(document)
    fields = {"kind": "", "times": ""}
    for key in TIMES:
        if is_line(rest.get(key)):
            fields |= {"kind": key, "times": rest.pop(key)}
    fields |= {key: rest.pop(key) for key in TEXTS if is_line(rest.get(key))}
    fields |= {key: str(rest.pop(key)) for key in AMOUNTS if key in rest}
    for key, kind in JSONS.items():
        if isinstance(rest.get(key), kind):
            value = rest.pop(key)
            text = json.dumps(value, ensure_ascii=False)
            fields[key] = text if text.isprintable() else json.dumps(value)
    if rest.get("paused") is True:
        fields["paused"] = str(rest.pop("paused"))
    return fields | {"more": document_text(rest)}


def is_line(value: Any) -> bool:
    """Whether a field of one line keeps the text as it is."""
    return isinstance(value, str) and value.isprintable() and value == value.strip()


def document_in(fields: Fields) -> Document:
    """The fields as a document, without the empty ones. Raises InvalidForm."""
    document: Document = {}
    problems: list[str] = []
    more = further_keys(fields.get("more", ""), problems)
    for key, value in given(fields, problems):
        if key in more:
            problems.append(f"{key!r} is given twice: in its field, and among the further keys")
        document[key] = value
    if problems:
        raise InvalidForm(problems)
    return document | more


def given(fields: Fields, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Keys and values of the fields that are keys of a job."""
    kind, times = fields.get("kind", ""), fields.get("times", "").strip()
    if kind in TIMES and times:
        yield kind, times
    elif times:
        problems.append(f"{times!r}: choose what kind of schedule it is")
    readers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(TEXTS, str),
        **dict.fromkeys(AMOUNTS, plain_value),
        **dict.fromkeys(JSONS, loads),
    }
    for key, reader in readers.items():
        if text := fields.get(key, "").strip():
            try:
                yield key, reader(text)
            except (ValueError, RecursionError) as error:
                problems.append(f"{key!r}: {error}")
    if "paused" in fields:
        yield "paused", True


def further_keys(text: str, problems: list[str]) -> Document:
    document = read(text)
    problems += [
        f"further keys, line {fault.line}: {fault.what}"
        + (f" ({fault.hint})" if fault.hint else "")
        for fault in document.faults
    ]
    data = document.data
    if data is None or data is UNREADABLE:
        return {}
    if not isinstance(data, dict):
        problems.append("further keys: not keys and values, such as start_deadline: 10m")
        return {}
    return data
