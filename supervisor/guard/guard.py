"""What the attempts of a process share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from supervisor.guard.child_table import ChildTable
from supervisor.guard.lock_file import LockFile
from supervisor.job.steps import Params
from supervisor.ledger.ledger import Ledger

if TYPE_CHECKING:
    from supervisor.guard.attempt import Attempt

REPORT_TIMEOUT = timedelta(seconds=30)


@dataclass(slots=True)
class Guard:
    """What the attempts of a process share."""

    ledger: Ledger

    publish: Callable[[Sequence[str]], Any]
    """Sends the messages of runs that Celery has to make."""

    worker: str
    """This process' name, as people see it."""

    owner: str = ""
    """The name of the ledger's app."""

    decode: Callable[[str], Any] = json.loads
    """Reads a step's params."""

    report_timeout: timedelta = REPORT_TIMEOUT
    """For how long an end is reported once there is a reason to give it up."""

    texts_of_failures: Sequence[Callable[[BaseException, Attempt], str]] = ()
    """What features keep, with a failed attempt, of what its code raised."""

    table: ChildTable = field(default_factory=lambda: ChildTable(is_shared=False))
    lock_file: LockFile = field(default_factory=LockFile)
    """The worker's."""

    _params: tuple[str, Mapping[str, Any]] = ("", MappingProxyType({}))

    def params_of(self, run_id: str, stage: str) -> Mapping[str, Any]:
        """The params of a stage, which all of its steps and items share: they are read once."""
        key, kept = f"{run_id} {stage}", self._params
        if kept[0] != key:
            load = partial(self.ledger.steps.params, run_id)
            kept = self._params = (key, Params(load, self.decode))
        return kept[1]
