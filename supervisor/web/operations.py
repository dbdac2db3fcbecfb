"""The API as a table: every row is a route, and a part of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from supervisor.runs.run import RunState
from supervisor.web import answers, requests
from supervisor.web.listing import Filter, Sort

#: Prefix of all paths of the table.
API = "/api/v1"


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of the query. `schema` is JSON Schema."""

    name: str
    about: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """answer: of success; is_list: many of them. body: of the request. errors: other codes."""

    name: str
    method: Literal["get", "post"]
    path: str
    about: str
    answer: type[BaseModel]
    is_list: bool = False
    status: int = 200
    queries: Sequence[Query] = ()
    body: type[BaseModel] | None = None
    errors: Sequence[int] = ()


MOST_RUNS = 1_000
MOST_JOBS = 10_000

RUN_LIMIT = Query(
    "limit",
    "The newest so many of those that match.",
    {"type": "integer", "minimum": 1, "maximum": MOST_RUNS},
)
OUTCOME = Query(
    "outcome",
    "Only runs in this state.",
    {"type": "string", "enum": [state.value for state in RunState]},
)

OPERATIONS = (
    Operation(
        *("jobs", "get", "/jobs", "The loaded jobs.", answers.Job),
        is_list=True,
        queries=(
            Query("search", "Only jobs whose name has this in it.", {"type": "string"}),
            Query(
                "state",
                "Only jobs that stand so; late: half a minute past a time, and not started.",
                {"type": "string", "enum": [word.value for word in Filter]},
            ),
            Query(
                "sort",
                "By name, or what the page sorts by; -next is the reverse of next.",
                {"type": "string", "enum": [s + word.value for word in Sort for s in ("", "-")]},
            ),
            Query(
                "limit",
                "Up to that many.",
                {"type": "integer", "minimum": 1, "maximum": MOST_JOBS},
            ),
            Query("after", "Only jobs that come after this one.", {"type": "string"}),
        ),
        errors=(400,),
    ),
    Operation("job", "get", "/jobs/{job}", "One job.", answers.Job, errors=(404,)),
    Operation(
        *("runs", "get", "/runs", "The latest runs, of all jobs or of one.", answers.Run),
        is_list=True,
        queries=(Query("job", "Only runs of this job.", {"type": "string"}), OUTCOME, RUN_LIMIT),
        errors=(400, 404),
    ),
    Operation(
        *("failures", "get", "/failures", "The latest runs of all jobs that failed.", answers.Run),
        is_list=True,
        queries=(RUN_LIMIT,),
        errors=(400,),
    ),
    Operation(
        *("run_log", "get", "/runs/{run}/log", "The lines that a run logged.", answers.LogLine),
        is_list=True,
        errors=(404,),
    ),
    Operation(
        *("run", "get", "/runs/{run}", "One run, with its steps.", answers.WholeRun),
        errors=(404,),
    ),
    Operation("queues", "get", "/queues", "Queues, workers, and runs at work.", answers.Queues),
    Operation("beat", "get", "/beat", "Who emits, and since when.", answers.Beat),
    Operation(
        *("trigger", "post", "/jobs/{job}/trigger", "Run a job now, paused or not.", answers.Run),
        status=201,
        body=requests.Trigger,
        errors=(400, 404, 409),
    ),
    Operation(
        *("pause", "post", "/jobs/{job}/pause", "Exclude the job's ticks.", answers.Paused),
        body=requests.Pause,
        errors=(400, 404),
    ),
    Operation(
        *("resume", "post", "/jobs/{job}/resume", "Emit the job's ticks again.", answers.Resumed),
        body=requests.Resume,
        errors=(400, 404),
    ),
    Operation(
        *("cancel", "post", "/runs/{run}/cancel", "End a run.", answers.Cancelled),
        status=202,
        body=requests.Cancel,
        errors=(400, 404, 409),
    ),
)
