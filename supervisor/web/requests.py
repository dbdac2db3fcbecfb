"""What the API's actions may be told; unknown words are refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from supervisor.control import LONGEST_NOTE
from supervisor.job.overlap import OverlapPolicy
from supervisor.ledger.requests import RunRequest
from supervisor.times.durations import Duration


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Trigger(Request):
    """A run by hand; what is left out is as the job has it."""

    args: list[Any] | None = Field(None, description="Positional arguments of the task.")
    kwargs: dict[str, Any] | None = Field(None, description="Keyword arguments of the task.")
    params: dict[str, Any] | None = Field(None, description="What the steps begin with.")
    overlap: OverlapPolicy | None = Field(None, description="In place of the job's policy.")
    key: str | None = Field(None, description="The lock's key, in place of the job's.")
    max_wait: Duration | None = Field(None, description="How long to wait for the lock.")

    def as_request(self) -> RunRequest:
        return RunRequest(
            args=self.args,
            kwargs=self.kwargs,
            params=self.params,
            overlap=self.overlap,
            key=self.key,
            max_wait=self.max_wait,
        )


class Pause(Request):
    note: str = Field("", max_length=LONGEST_NOTE, description="Why, for those who wonder.")
    until: datetime | None = Field(
        None, description="When the job resumes by itself; without an offset a time of its zone."
    )


class Resume(Request):
    catch_up: bool = Field(
        False, description="Run the ticks of the pause, as `catchup` does after an outage."
    )


class Cancel(Request):
    """Nothing to say."""
