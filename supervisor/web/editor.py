"""The pages that make and edit jobs at run time, as the text of a schedule file.

1. The text has one job. It is checked as schedule files are, each problem with its line; the page's
   script sends it while it is typed, and without the script a button does.
2. Where there is no problem, the page says what saving would do: the differences, the next times,
   the queues and their workers, overlaps.
3. Saving names the version that the text was made of. If another was saved since, nothing is saved:
   the page comes back with the version that a second try would replace, and checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from supervisor.catalog import yaml_source
from supervisor.errors import Conflict, InvalidJob, JobConflict, NotConfigured
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.queues import Queue, Queues
from supervisor.operate.job_documents import Document, job_text
from supervisor.operate.job_edits import JobCheck, JobEdits
from supervisor.web.budget import Threads
from supervisor.web.http import RequestRefused, actor_of, form_endpoint
from supervisor.web.templating import job_url, page, root_of

Fields = Mapping[str, str]

#: What the text of a new job begins as.
NEW = "jobs:\n  name:\n    task: proj.report\n    every: 1h\n"

ONE_JOB = "not one job: write jobs: and below it a name, and below that the job's keys"

#: Names of tasks that are shown; none of Celery's own.
MOST_TASKS = 500

#: The text has at least that many lines of room.
LEAST_ROWS = 14


@dataclass(frozen=True, slots=True)
class TextProblem:
    line: int | None
    """Its number in the text, from 1; None for what is about no line."""

    text: str


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """The job in a text."""

    name: str
    keys: Document
    source: yaml_source.YamlDocument

    problems: Sequence[TextProblem] = ()
    """Those of the text as such. With any, the job is not to be used."""

    def checked(self, texts: Sequence[str], places: Sequence[yaml_source.KeyPath]) -> CheckedText:
        """The problems of the job, each with the line that it is about."""
        lines = [self.source.line_of(("jobs", self.name, *place)) for place in places]
        return CheckedText(
            sorted(map(TextProblem, lines, texts), key=lambda problem: problem.line or 0)
        )


@dataclass(frozen=True, slots=True)
class CheckedText:
    """The result of a check."""

    problems: Sequence[TextProblem] = ()
    job: JobCheck | None = None

    queues: Sequence[Queue] = ()
    """Those that runs of the job would go to."""

    @property
    def lines(self) -> Sequence[int]:
        return [problem.line for problem in self.problems if problem.line]


class Editor:
    def __init__(self, ledger: Ledger, jobs: JobEdits, broker: Queues | None) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._broker = broker

    def new(self, request: Request, _: Fields) -> Response:
        return self._page(request, {"version": "0", "text": NEW})

    def edit(self, request: Request, _: Fields) -> Response:
        """The page with a job's text, or the reason why the job is not edited here."""
        name = request.path_params["target"]
        job = self._jobs.job(name)
        if not job.is_editable:
            raise RequestRefused(409, f"{name} is not edited here: it is from {job.origin.place}")
        text = job_text(name, self._jobs.shown(job))
        fields = {"version": str(job.origin.version), "text": text, "edits": name}
        return self._page(request, fields, self._check(written(fields)))

    def check(self, request: Request, fields: Fields) -> Response:
        check = self._check(written(fields))
        if "part" not in request.query_params:
            return self._page(request, fields, check)
        return page(request, "parts/check.html", check=check, now=self._ledger.now())

    def save(self, request: Request, fields: Fields) -> Response:
        version, job = version_in(fields), written(fields)
        if job.problems:
            return self._page(request, fields, CheckedText(job.problems), 422)
        reason = fields.get("reason", "")
        try:
            self._jobs.save(job.name, job.keys, version, actor_of(request), reason)
        except JobConflict as error:
            why = self._conflict(job.name, fields, error.version)
            seen = {**fields, "version": str(error.version)}
            return self._page(request, seen, self._check(job), 409, why)
        except InvalidJob as error:
            return self._page(request, fields, job.checked(error.problems, error.places), 422)
        except (Conflict, NotConfigured) as error:
            return self._page(request, fields, CheckedText([TextProblem(None, str(error))]), 409)
        return RedirectResponse(f"{root_of(request)}/{job_url(job.name)}", 303)

    def _check(self, job: WrittenJob) -> CheckedText:
        if job.problems:
            return CheckedText(job.problems)
        of_job = self._jobs.check(job.name, job.keys)
        if of_job.plan is None:
            return job.checked(of_job.problems, of_job.places)
        queues = self._ledger.queues([of_job.plan.spec], self._broker)
        return CheckedText((), of_job, [queue for queue in queues if queue.jobs])

    def _conflict(self, name: str, fields: Fields, version: int) -> str:
        """Why the text was not saved. version: 0 where the job is gone."""
        if not version:
            return f"{name} was removed while you edited it."
        is_edit = bool(fields.get("edits"))
        what = f"Another saved {name} meanwhile" if is_edit else f"There is a job {name} already"
        return f"{what}: {self._jobs.job(name).origin.place}."

    def _page(
        self,
        request: Request,
        fields: Fields,
        check: CheckedText | None = None,
        status: int = 200,
        conflict: str = "",
    ) -> Response:
        tasks = sorted(t for t in self._jobs.app_tasks() if not t.startswith("celery."))
        return page(
            request,
            "editor.html",
            status,
            name=fields.get("edits", ""),
            fields=fields,
            rows=max(LEAST_ROWS, fields.get("text", "").count("\n") + 2),
            tasks=tasks[:MOST_TASKS],
            check=check,
            conflict=conflict,
            now=self._ledger.now(),
            may_act=True,
        )


def written(fields: Fields) -> WrittenJob:
    """The job in the text; its name may not change in an edit."""
    source = yaml_source.read(fields.get("text", ""))
    problems = [
        TextProblem(fault.line, fault.what + (f" ({fault.hint})" if fault.hint else ""))
        for fault in source.faults
    ]
    data = source.data
    jobs = data.get("jobs") if isinstance(data, dict) else None
    if not isinstance(jobs, dict) or len(jobs) != 1 or len(data) != 1:
        return WrittenJob("", {}, source, problems or [TextProblem(1, ONE_JOB)])
    [(name, keys)] = jobs.items()
    if not isinstance(keys, dict) and not problems:
        problems = [TextProblem(source.line_of(("jobs", name)), ONE_JOB)]
    if fields.get("edits", name) not in ("", name):
        what = f"the name cannot be changed: it is {fields['edits']}"
        problems.append(TextProblem(source.line_of(("jobs", name)), what))
    return WrittenJob(name, keys if isinstance(keys, dict) else {}, source, problems)


def version_in(fields: Fields) -> int:
    """Raises Refused."""
    text = fields.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise RequestRefused(400, "the form has no version")
    return int(text)


def editor_routes(
    ledger: Ledger, jobs: JobEdits, broker: Queues | None, threads: Threads
) -> list[Route]:
    editor = Editor(ledger, jobs, broker)
    return [
        Route("/actions/new", form_endpoint(threads, editor.new)),
        Route("/actions/edit/{target:path}", form_endpoint(threads, editor.edit)),
        Route("/actions/check", form_endpoint(threads, editor.check), methods=["POST"]),
        Route("/actions/put", form_endpoint(threads, editor.save), methods=["POST"]),
    ]
