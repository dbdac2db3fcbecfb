"""How a job's runs ended on each day, as the ledger has counted it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import YEAR
from supervisor.times import DAY

#: As in outcomes.lua: the kinds, the highest count, and after how many rounds of the ring their
#: numbers begin again with 1.
WORDS = ("succeeded", "failed", "missed", "skipped")
HIGHEST = 65_535
ROUNDS = 14

FIRST = date(1970, 1, 1)


def counts_of(ledger: Ledger, job: str, today: date) -> dict[date, Mapping[str, int]]:
    """Of the days up to today that have any, oldest first."""
    key = ledger.keys.outcomes(job)
    text: bytes | None = ledger.client.execute_command("GET", key, NEVER_DECODE=True)
    numbers = text.hex() if text else ""  # of twenty bits, five digits each
    counts: dict[date, Mapping[str, int]] = {}
    for day in range((today - FIRST).days - YEAR + 1, (today - FIRST).days + 1):
        of_day = {}
        for place, word in enumerate(WORDS, len(WORDS) * (day % YEAR)):
            digits = numbers[5 * place : 5 * place + 5] or "00000"
            if int(digits[0], 16) == day // YEAR % ROUNDS + 1 and (count := int(digits[1:], 16)):
                of_day[word] = count
        if of_day:
            counts[FIRST + day * DAY] = of_day
    return counts
