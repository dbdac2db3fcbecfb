"""What a button of the page does, and the buttons of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger

Fields = Mapping[str, str]

#: Does what a form asks for, to a job or a run, in the name of the sender. Returns the address of
#: the result.
Act = Callable[[Ledger, str, Fields, Actor], str]


@dataclass(frozen=True, slots=True)
class Button:
    """A button of a feature."""

    verb: str
    """As in the addresses of its form."""

    act: Act

    form: Callable[[Ledger, str], Mapping[str, Any]]
    """What its form shows of its target, for action.html: `asks` is the template of its fields."""

    on_job: str = ""
    """What it says on the page of a job, if it is there."""

    on_jobs: str = ""
    """What it says above the list of jobs, if it is there."""
