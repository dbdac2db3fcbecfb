"""A beat and workers that the tests of a module share; who was killed is replaced."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery

from supervisor.job.run import Run
from supervisor.ledger.requests import RunRequest
from supervisor.sending.publisher import Publisher
from tests.acceptance.project import Project, Sign
from tests.conftest import emptied
from tests.waiting import wait_until

Process = subprocess.Popen[bytes]

#: Ready to take a run: one to be killed, one to go on with it.
NEEDED = 2


@dataclass
class Crew:
    project: Project
    options: Sequence[str] = ()
    processes: int = 2
    others: list[Process] = field(default_factory=list)

    def staff(self) -> Crew:
        """Returns when enough workers are ready; a third is on its way for the next test."""
        for _ in range(NEEDED + 1 - len(self.workers)):
            self.project.hire(*self.options, processes=self.processes)
        wait_until(lambda: sum(map(self.project.is_ready, self.workers)) >= NEEDED, 30)
        return self

    @property
    def workers(self) -> list[Process]:
        """Those for everything that live and were not told to stop."""
        hired = self.project.processes[1:]
        return [w for w in hired if w.poll() is None and w not in self.others]

    def hire_for(self, queue: str) -> Process:
        """A worker for this queue alone, which may still be on its way."""
        self.others.append(self.project.hire(queues=queue, processes=self.processes))
        return self.others[-1]

    def trigger(self, job: str, *args: Any) -> Run:
        """A run with these arguments, or the job's own; it does not wait for beat's next tick."""
        ledger = self.project.ledger
        run = ledger.trigger(ledger.spec(job), RunRequest(args=args or None))
        with Celery(broker=self.project.url) as app:
            Publisher(app, ledger).publish([run.id])
        return run

    def starts(self, run: Run) -> list[Sign]:
        return [sign for sign in self.project.starts(run.job) if sign.run == run.id]

    def ends(self, run: Run) -> list[Sign]:
        signs = self.project.witness(run.job)
        return [sign for sign in signs if sign.run == run.id and sign.event == "end"]

    def start_of(self, run: Run, number: int = 1, timeout: float = 20) -> Sign:
        """The witness' word for one of the run's starts, once it was."""
        return wait_until(lambda: self.starts(run)[number - 1 :], timeout)[0]

    def worker_of(self, run: Run) -> Process:
        """The worker that tells of the run's last start."""
        told = [
            (event["attempt"], worker)
            for worker in self.project.processes[1:]
            for event in self.project.events_of(worker, "run started")
            if event["run"] == run.id
        ]
        return max(told, key=lambda pair: int(str(pair[0])))[1]

    def count(self, job: str, what: str) -> int:
        return self.project.ledger.job(job).counters.get(what, 0)

    def outcomes(self, run: Run) -> list[str | None]:
        return [attempt.outcome for attempt in self.project.ledger.run(run.id).attempts]

    def lock_is_free(self, job: str) -> bool:
        ledger = self.project.ledger
        return not ledger.client.exists(ledger.keys.lock(job))

    def tell(self, worker: Process, *numbers: signal.Signals) -> None:
        """Sends one signal after the other: each once the worker has said that it got the last."""
        self.others.append(worker)
        for number in numbers[:-1]:
            said = self.shutdowns(worker)
            worker.send_signal(number)
            wait_until(lambda said=said: self.shutdowns(worker) > said)  # type: ignore[misc]
        worker.send_signal(numbers[-1])

    def shutdowns(self, worker: Process) -> int:
        return self.project.log_of(worker).count("shutdown (MainProcess)")


@contextmanager
def crew_of(
    directory: Path, url: str, schedule: str, *options: str, settings: str = "", processes: int = 2
) -> Iterator[Crew]:
    """`settings` are lines for the end of the team's module."""
    emptied(url)
    project = Project(directory, url)
    with (directory / "team.py").open("a") as team:
        team.write(settings)
    project.schedule(schedule)
    crew = Crew(project, options, processes)
    try:
        project.beat()
        crew.staff()
        wait_until(project.ledger.scheduled, 20)
        yield crew
    finally:
        project.stop()


def database(server_url: str, number: int) -> str:
    return f"{server_url.rsplit('/', 1)[0]}/{number}"
