"""What a job says is text of any kind: no reader takes a part of it for the end of a line."""

from __future__ import annotations

import json

from tests.acceptance.project import Project

#: What Python's `splitlines` takes for the end of a line.
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

TEXTS = {
    "separators": "a" + SEPARATORS + "b",
    "controls": "a\0\x1b[2J\x7f\x9b\u202eb",
    "half-characters": "a\ud800b\udc80",
    "long": "a\u2028" * 500_000,
}

TASKS = f"""
TEXTS = {TEXTS!r}

class Raised(Exception):
    pass

@app.task
def says(name):
    print(TEXTS[name].encode(errors="replace").decode())
    logging.getLogger("says").error(TEXTS[name])
    current_run().progress(1, 2, TEXTS[name])
    current_run().log(TEXTS[name])
    raise Raised(TEXTS[name])

@app.task
def hands_on(name):
    return {{"text": TEXTS[name][:1000]}}

@app.task
def takes(text):
    assert text == TEXTS[current_run().job.removeprefix("steps-")][:1000]
    return text
"""

JOBS = {
    name: {"task": "team.says", "args": [name], "every": "24h", "log": "capture"}
    | ({} if name == "long" else {"max_retries": 1, "retry_backoff": "0s"})
    for name in TEXTS
} | {
    f"steps-{name}": {
        "every": "24h",
        "steps": [
            {"task": "team.hands_on", "args": [name], "priority": 2},
            {"task": "team.takes", "priority": 1},
        ],
    }
    for name in TEXTS
}


def test_beat_and_worker_outlive_what_a_job_says(project: Project) -> None:
    project.extend("import logging\n" + TASKS)
    project.schedule(json.dumps({"jobs": JOBS}))
    beat, worker = project.beat(), project.worker()
    project.wait_for_jobs()
    runs = {name: project.trigger(name).id for name in JOBS}
    for name, run in runs.items():
        ended = project.run_when(run, "succeeded" if name.startswith("steps-") else "failed", 40)
        assert len(ended.attempts) == (2 if "max_retries" in JOBS[name] else 1)
        verbs = (("show", run), ("show", run, "--json"), ("why", run), ("runs", name))
        for words in verbs if "steps" not in name else verbs[:1]:
            shown = project.supervisor(*words)
            assert "Traceback (most" not in shown.stderr, words
            assert shown.returncode in (0, 1) and shown.stdout, words
    failed = project.ledger.run(runs["separators"]).attempts
    assert [attempt.reason for attempt in failed] == [f"Raised: {TEXTS['separators']}"] * 2
    assert beat.poll() is None and worker.poll() is None
