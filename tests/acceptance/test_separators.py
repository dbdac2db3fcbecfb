"""What a job raises is text: characters that some readers take for the end of a line are not."""

from __future__ import annotations

from tests.acceptance.project import Project

#: What Python's `splitlines` takes for the end of a line.
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

TASK = f"""
@app.task
def breaks_lines():
    raise ValueError("a" + {SEPARATORS!r} + "b")
"""

JOBS = """
jobs:
  retried: {task: team.breaks_lines, every: 24h, max_retries: 2, retry_backoff: 0s}
  once: {task: team.breaks_lines, every: 24h}
"""


def test_beat_outlives_line_separators_in_a_failure(project: Project) -> None:
    project.extend(TASK)
    project.schedule(JOBS)
    beat = project.beat()
    project.worker()
    project.wait_for_jobs()
    runs = [project.trigger(name) for name in ("retried", "once")]
    ended = [project.run_when(run.id, "failed", 40) for run in runs]
    assert [len(run.attempts) for run in ended] == [3, 1]
    assert all("a\n" in attempt.reason for run in ended for attempt in run.attempts)
    assert beat.poll() is None
    for words in (("runs", "retried"), ("why", "once"), ("why", runs[0].id), ("status",)):
        shown = project.supervisor(*words)
        assert "Traceback" not in shown.stdout + shown.stderr
        assert shown.returncode == 0 or words[0] != "runs"
