"""The message of a run that is about to be asked for: sent by the script that admits the run.

That takes one round trip, where to admit the run, to read it, to send its message and to say so
takes five; and no crash comes in between. It can be told where the broker's queues are keys beside
the ledger's, and nobody but Celery has a say in how the message is sent.

Nothing here connects to anything: what it takes to know the broker is kept from the message that
was last sent in the other way. The first call of a process goes that way, and with a broker that is
away none waits for it in vain.
"""

from __future__ import annotations

from datetime import UTC, datetime

import structlog

from supervisor.execution.assignments import of_job
from supervisor.job.overlap import OverlapPolicy
from supervisor.job.spec import JobSpec
from supervisor.ledger.requests import Message, RunRequest
from supervisor.runs.run import Run, RunState
from supervisor.sending.lineage import of_nobody
from supervisor.sending.publisher import Publisher
from supervisor.sending.recording import is_ordinary, recorded

log = structlog.get_logger("supervisor.beforehand")


def message_of(publisher: Publisher, spec: JobSpec, request: RunRequest) -> Message | None:
    """None where the run is to be published once it is admitted. Raises InvalidKey."""
    rules, now = request.rules_for(spec), datetime.now(UTC)
    # One that replaces another is queued by what becomes of that one.
    may_replace = OverlapPolicy.REPLACE in (rules["overlap"], rules["on_max_skips"])
    if may_replace or request.delay or request.run_id is None or spec.task is None:
        return None
    channel = publisher.channel_beside
    if channel is None or not is_ordinary(publisher.app, spec.task):
        return None
    run = Run(
        *(request.run_id, spec.name, RunState.QUEUED, now, now),
        args=request.args,
        kwargs=request.kwargs,
        options=request.options,
        rules=rules,
    )
    try:
        with of_nobody():
            return recorded(publisher.app, channel, publisher.send, of_job(run, spec, spec.task))
    except Exception as error:  # noqa: BLE001 - who publishes the run finds the same, and says so
        publisher.channel_beside = None  # it may be its connection, which is found anew then
        log.info("no message beforehand", job=spec.name, error=str(error))
        return None
