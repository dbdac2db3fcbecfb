"""What is signed of a message's header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.sending.signing import MARK, OF_A_RUN, text_of

RULES = {"lock": "orders", "overlap": "skip", "lease_ttl": 30000}
HEADER = {"job": "orders", "run": "orders@1", "queue": "celery", "rules": RULES, "max_retries": 0}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"run": "orders@2", "nominal_at": "2026-03-01T02:00:00Z", "signature": "any"},
        {"queue": "other"},
        {"rules": {**RULES, "lock": 'a "quoted" lock'}},
        {"rules": {**RULES, "lock": MARK}},
        {"rules": {**RULES, "lease_ttl": 60000}},
        {"rules": {"overlap": "skip"}},
        {"rules": {**RULES, MARK: MARK}},
        {"references": [MARK, ["args", 0]]},
        {"rules": None},
        {"job": 3},
    ],
)
def test_a_known_header_is_written_as_the_header_that_it_is(changed: dict[str, Any]) -> None:
    header = {**HEADER, **changed}
    signed = {name: value for name, value in header.items() if name not in OF_A_RUN}
    for each in (HEADER, header, HEADER, header):
        text_of(each)
    assert text_of(header) == json.dumps(signed, sort_keys=True)
