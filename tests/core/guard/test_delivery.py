"""What a worker reads in the message of a run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from supervisor.guard.delivery import Delivery

DAY = 86_400


@pytest.mark.parametrize(
    ("retries", "shortest", "longest", "seconds"),
    [
        (0, 10, 600, 10),
        (3, 10, 600, 80),
        (9, 10, 600, 600),
        (2_000, 10, 600, 600),
        (40, DAY, DAY, DAY),
        (40, 30 * DAY, 365 * DAY, 365 * DAY),
        (40, 0, 600, 0),
    ],
)
def test_the_wait_for_a_retry_doubles_up_to_its_bound(
    retries: int, shortest: int, longest: int, seconds: int
) -> None:
    header = {"retry_backoff": shortest, "retry_backoff_max": longest}
    assert Delivery(header, "token", retries).backoff == timedelta(seconds=seconds)
