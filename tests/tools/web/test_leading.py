"""Pages, `why` and `doctor` agree on whether a beat leads."""

from __future__ import annotations

import httpx
import pytest

from supervisor.ledger.leader import ABSENCE
from supervisor.ledger.ledger import Ledger
from supervisor.operate.deployment import read
from supervisor.operate.doctor import examine
from supervisor.operate.question import question_of_job
from supervisor.times import ms_of
from tests.jobs import job
from tests.presence import beat_is_there, beat_says

SECONDS = ABSENCE.total_seconds()


def tick_ago(ledger: Ledger, seconds: float) -> None:
    last = ms_of(ledger.now()) - round(seconds * 1000)
    beat_says(ledger, leader="a", last_tick=last)


@pytest.mark.parametrize(("ago", "leads"), [(SECONDS - 10, True), (SECONDS + 0.1, False)])
def test_all_that_report_a_leader_agree(
    ledger: Ledger, reader: httpx.Client, ago: float, leads: bool
) -> None:
    job(ledger)
    beat_is_there(ledger, "a", leads=True)
    tick_ago(ledger, ago)
    assert ledger.beat().leads(ledger.now()) is leads
    tick_ago(ledger, ago)
    assert question_of_job(ledger, "nightly").beat_leads is leads
    tick_ago(ledger, ago)
    assert ("nothing is emitted" not in reader.get("/").text) is leads
    tick_ago(ledger, ago)
    kinds = [kinds.what for kinds in examine(read(ledger)) if kinds.check == "beat"]
    assert ("no beat leads, though 1 is running" not in kinds) is leads
