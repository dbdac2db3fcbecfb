"""RedBeat's entries under another prefix of keys than the app's now: beat takes them along.

A ledger with a prefix of its own once had them under `redbeat:`, as all others; and an app may
change its `redbeat_key_prefix`.

1. The ledger holds the prefix under which its entries are. Beat looks at it when it starts.
2. While an older beat of this ledger leads, by the lock under that prefix, this one waits.
3. One function moves them all (move_entries.lua), with when they are next due.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from celery import Celery
from redbeat.schedulers import ensure_conf
from redis.exceptions import NoPermissionError

from supervisor.beat.entries import SPEC_FIELD
from supervisor.ledger.connection import Client
from supervisor.ledger.keys import Keys
from supervisor.ledger.ledger import Ledger
from supervisor.logs import get_logger
from supervisor.sending.app_settings import REDBEAT_PREFIX, own_redbeat_prefix
from supervisor.settings import DEFAULT_PREFIX

log = get_logger("supervisor.beat")

KEEP = "they are emitted where the app's settings say redbeat_key_prefix = 'redbeat:'"


def follow_prefix(app: Celery, ledger: Ledger) -> bool:
    """Whether the entries are where the app has them; False while an older beat leads."""
    prefix, keys = ensure_conf(app).key_prefix, ledger.keys
    before = ledger.client.hget(keys.beat, "entries")
    if before is None and prefix == own_redbeat_prefix(keys.prefix) != REDBEAT_PREFIX:
        with suppress(NoPermissionError):  # a user who has this ledger's keys alone
            if has_entries(ledger, REDBEAT_PREFIX):
                before = REDBEAT_PREFIX
            elif left := list(left_behind(app, ledger.client)):
                log.warning("entries left under another prefix", entries=left[:10], hint=KEEP)
    if before in (None, prefix):
        ledger.client.hset(keys.beat, "entries", prefix)
        return True
    is_shared = before == REDBEAT_PREFIX and has_default_ledger(ledger.client)
    moved = ledger.move_entries(before, prefix, app.tasks, is_shared=is_shared)
    if moved < 0:
        return False
    log.warning("entries moved", entries=moved, before=before, now=prefix)
    return True


def has_entries(ledger: Ledger, prefix: str) -> bool:
    """Whether any job of the ledger has its entry there."""
    jobs = ledger.client.hgetall(ledger.keys.jobs)
    with ledger.client.pipeline(transaction=False) as pipe:
        for job in jobs:
            pipe.hget(prefix + job, SPEC_FIELD)
        return any(text == found for text, found in zip(jobs.values(), pipe.execute(), strict=True))


def left_behind(app: Celery, client: Client) -> Iterator[str]:
    """Entries that the app made under RedBeat's own prefix before it was given one."""
    for key in client.zrange(f"{REDBEAT_PREFIX}:schedule", 0, -1):
        entry = client.hgetall(key)
        if SPEC_FIELD not in entry and task_of(entry) in app.tasks:
            yield key


def task_of(entry: Mapping[str, str]) -> str:
    return str(json.loads(entry.get("definition", "{}")).get("task"))


def has_default_ledger(client: Client) -> bool:
    try:
        return client.get(Keys(DEFAULT_PREFIX).schema) is not None
    except NoPermissionError:  # the ledgers on this server have a user each
        return True
