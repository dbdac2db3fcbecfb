"""The pages that make and edit jobs at run time.

The form is checked while it is filled in: the page's script sends it to `actions/check` and shows
the answer. Without the script its button does the same. Saving names the version that the form was
made of; where another was saved meanwhile, nothing is saved, and the form comes back with what
differs and with the version that a second try would replace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.errors import InvalidJob, JobConflict, JobElsewhere, NotConfigured, TooManyJobs
from supervisor.job.changes import Edit
from supervisor.job.policies import OverlapPolicy
from supervisor.ledger.ledger import Ledger
from supervisor.operate.job_documents import document_text
from supervisor.operate.job_edits import JobEdits, Verdict
from supervisor.web.budget import Threads
from supervisor.web.http import TEMPLATES, Refused, actor_of, form_body, job_url, place_of
from supervisor.web.job_form import TIMES, InvalidForm, document_in, fields_of

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
        """The form of a job; of one that is not edited here, the reason."""
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
        return RedirectResponse(f"{request.state.visitor.root}/{job_url(name)}", 303)

    def _verdict(self, fields: Fields) -> Verdict:
        try:
            document = document_in(fields)
        except InvalidForm as error:
            return Verdict(tuple(error.problems))
        return self._jobs.verdict(fields.get("name", "").strip(), document)

    def _conflict(
        self, name: str, fields: Fields, error: JobConflict, verdict: Verdict
    ) -> Conflict:
        """What the form would change of what the other has saved."""
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

    def shown(answer: Callable[[Request, Fields], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            return await threads.run(request, answer, request, {})

        return endpoint

    def sent(answer: Callable[[Request, Fields], Response]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            fields = await form_body(request)
            return await threads.run(request, answer, request, fields)

        return endpoint

    return [
        Route("/actions/new", shown(editor.new)),
        Route("/actions/edit/{target:path}", shown(editor.edit)),
        Route("/actions/check", sent(editor.check), methods=["POST"]),
        Route("/actions/put", sent(editor.save), methods=["POST"]),
    ]
