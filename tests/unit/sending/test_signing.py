"""What is signed of a message's header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.sending.signing import text_of

RULES = {"lock": "orders", "overlap": "skip", "lease_ttl": 30000}
HEADER = {"job": "orders", "run": "orders@1", "queue": "celery", "rules": RULES, "max_retries": 0}


@pytest.mark.parametrize(
    "changed",
    [
        {"queue": "other"},
        {"rules": {**RULES, "lock": 'a "quoted" lock'}},
        {"rules": {**RULES, "lease_ttl": 60000}},
        {"rules": None},
        {"references": ["args"]},
    ],
)
def test_whatever_the_ledger_says_of_a_message_is_signed(changed: dict[str, Any]) -> None:
    assert text_of({**HEADER, **changed}) != text_of(HEADER)


def test_what_differs_between_runs_of_a_job_is_signed_beside_it() -> None:
    of_a_run = {"run": "orders@2", "nominal_at": "2026-03-01T02:00:00Z", "signature": "any"}
    assert text_of({**HEADER, **of_a_run}) == text_of(HEADER)


def test_the_order_in_which_a_header_is_written_does_not_matter() -> None:
    reversed_header = dict(reversed(HEADER.items()))
    assert json.dumps(reversed_header) != json.dumps(HEADER)
    assert text_of(reversed_header) == text_of(HEADER)
