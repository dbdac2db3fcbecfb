"""What a worker of a supervised app does before it forks its pool."""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Thread
from typing import Any

from billiard import get_start_method, set_start_method
from celery import Celery, bootsteps, signals

from supervisor.catalog.fitness import guard_in_code
from supervisor.errors import InvalidGuard, WrongSchema
from supervisor.guard.current_run import mark_records
from supervisor.guard.reaper import Reaper
from supervisor.logs import get_logger
from supervisor.sending.app_settings import adjust_for_runs
from supervisor.sending.calls import spec_of
from supervisor.sending.context import headers_of_context
from supervisor.sending.publisher import publisher_of
from supervisor.store.failures import RedisError, explained
from supervisor.worker.celery_fixes import (
    end_orphans,
    end_without_queues,
    limit_tasks_alone,
    read_results_whole,
    take_any_message,
)
from supervisor.worker.intake import Intake
from supervisor.worker.main_process import main_process_of
from supervisor.worker.prefetch import expects_runs
from supervisor.worker.presence import Attends
from supervisor.worker.refused_runs import forks
from supervisor.worker.run_qos import keep_no_record_of_runs
from supervisor.worker.task import guard_of

log = get_logger("supervisor.worker")


class TellsChildren(bootsteps.StartStopStep):
    """Tells children that wait for the ledger that the worker stops, however it is stopped."""

    def close(self, worker: Any) -> None:
        main_process_of(worker.app).table.set_stopping(True)


def prepare(sender: Any) -> None:
    """Prepares a worker. Refuses a ledger of another schema."""
    # A thread that imports while a child is forked leaves it a lock that is never released.
    headers_of_context()  # imports what features need for it
    main_process_of(sender.app).table.set_stopping(False)
    mark_records()
    end_orphans()
    sender.app.steps["worker"].add(TellsChildren)
    sender.app.steps["consumer"] |= {Intake, Attends}
    take_any_message()
    keep_no_record_of_runs()
    read_results_whole()
    limit_tasks_alone()
    try:
        ledger = publisher_of(sender.app).ledger
        ledger.check_schema()
        register_all(sender.app)
    except WrongSchema as error:
        raise SystemExit(str(error)) from error
    except RedisError as error:  # they are registered when they are called
        log.warning("guarded tasks not registered", error=explained(error))
    prove_life(sender.app)  # jobs of its queues may come later
    if expects_runs(sender.app):
        if not sender.app.conf.broker_channel_error_retry:  # else it is the app's own wish
            end_without_queues()
        adjust_for_runs(sender.app.conf)
        if get_start_method() != "fork":  # billiard's own choice on macOS
            set_start_method("fork", force=True)
        if not forks(sender):
            raise SystemExit("a worker of jobs forks: leave worker_pool_start_method as it is")
        prepare_children(sender.app)


def register_all(app: Celery) -> None:
    """Registers the guarded tasks before they are called, so that their metrics start at 0."""
    for task in app.tasks.values():
        if not guard_in_code(task):
            continue
        try:
            publisher_of(app).ledger.register(spec_of(task))
        except InvalidGuard as error:  # calls of this task are refused; the others work
            log.error("guard rejected", task=task.name, problems=error.problems)


def prove_life(app: Celery) -> None:
    """Also looks for earlier workers that are gone: this one may replace one of them."""
    Reaper(publisher_of(app).ledger).reap()
    main_process_of(app).lock_file.hold()


def prepare_children(app: Celery) -> None:
    """Has a child connect to the ledger as soon as it starts, and not with its first run.

    It does so in a thread, because a child that is not up after four seconds is killed.
    """
    main = os.getpid()

    def connect() -> None:
        with suppress(RedisError):  # its first run finds the same
            publisher_of(app).ledger.schema()

    def start(**_: Any) -> None:
        if os.getpid() != main:
            guard_of(app, os.getpid())  # it installs handlers of signals, which the thread may not
            Thread(target=connect, name="supervisor-connect", daemon=True).start()

    signals.worker_process_init.connect(start, weak=False)
