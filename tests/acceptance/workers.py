"""Workers that the tests of a module share; one that was killed is replaced."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from supervisor.job.run import Run
from supervisor.ledger.run_request import RunRequest
from supervisor.sending.publisher import Publisher
from tests.acceptance.project import Process, Project, Sign
from tests.waiting import wait_until

#: One to be killed, and one to go on with its run.
NEEDED = 2


@dataclass
class Workers:
    project: Project
    options: Sequence[str] = ()
    processes: int = 2
    size: int = NEEDED + 1
    others: list[Process] = field(default_factory=list)

    def staff(self) -> Workers:
        """Returns when enough workers are ready; one more is on its way for the next test."""
        for _ in range(self.size - len(self.alive)):
            self.project.hire(*self.options, processes=self.processes)
        wait_until(
            lambda: sum(map(self.project.is_ready, self.alive)) >= min(self.size, NEEDED), 30
        )
        return self

    @property
    def alive(self) -> list[Process]:
        """Those of all queues that live and were not told to stop."""
        hired = self.project.processes[1:]
        return [w for w in hired if w.poll() is None and w not in self.others]

    def hire_for(self, queue: str) -> Process:
        """A worker for this queue alone, which may still be on its way."""
        self.others.append(self.project.hire(*self.options, queues=queue, processes=self.processes))
        return self.others[-1]

    def trigger(self, job: str, *args: Any) -> Run:
        """A run with these arguments, or the job's own; it does not wait for beat's next tick."""
        ledger = self.project.ledger
        run = ledger.trigger(ledger.spec(job), RunRequest(args=args or None))
        if not run.sends:  # the ledger has not sent it
            with Celery(broker=self.project.url) as app:
                Publisher(app, ledger).publish([run.id])
        return run

    def starts(self, run: Run) -> list[Sign]:
        return [sign for sign in self.project.starts(run.job) if sign.run == run.id]

    def ends(self, run: Run) -> list[Sign]:
        signs = self.project.witness(run.job)
        return [sign for sign in signs if sign.run == run.id and sign.event == "end"]

    def start_of(self, run: Run, number: int = 1, timeout: float = 20) -> Sign:
        """One of the run's starts, once it was."""
        return wait_until(lambda: self.starts(run)[number - 1 :], timeout)[0]

    def worker_of(self, run: Run) -> Process:
        """The worker that logged the run's last start."""
        logged = [
            (event["attempt"], worker)
            for worker in self.project.processes[1:]
            for event in self.project.events_of(worker, "run started")
            if event["run"] == run.id
        ]
        return max(logged, key=lambda pair: int(str(pair[0])))[1]

    def count(self, job: str, what: str) -> int:
        return self.project.ledger.job(job).counters.get(what, 0)

    def refused(self) -> int:
        """Deliveries: by the ledger, or by a process that has the run itself, without children."""
        return sum(
            len(self.project.events_of(worker, event))
            for worker in self.project.processes[1:]
            for event in ("delivery dropped", "run kept out")
        )

    def outcomes(self, run: Run) -> list[str | None]:
        return [attempt.outcome for attempt in self.project.ledger.run(run.id).attempts]

    def lock_is_free(self, job: str) -> bool:
        ledger = self.project.ledger
        return not ledger.client.exists(ledger.keys.lock(job))

    def stop(self, worker: Process, *numbers: signal.Signals) -> None:
        """Sends one signal after the other: each once the worker has logged the last."""
        self.others.append(worker)
        for number in numbers[:-1]:
            logged = self.shutdowns(worker)
            worker.send_signal(number)
            wait_until(lambda n=logged: self.shutdowns(worker) > n)  # type: ignore[misc]
        worker.send_signal(numbers[-1])

    def shutdowns(self, worker: Process) -> int:
        return self.project.log_of(worker).count("shutdown (MainProcess)")
