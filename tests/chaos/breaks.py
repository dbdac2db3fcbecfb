"""Ways in which the product can be broken, each as an edit of a copy of its package.

A break names what a promise rests on. `make chaos-catches` starts the processes with the copy, and
the campaign must find that a promise was not kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "supervisor"


class PatchDoesNotApply(Exception):
    """The text that a break replaces is not in the package, or not once."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the file `path` of the package, `old`, which is there once, becomes `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Break:
    """faults: those under which it shows, and their weights; seconds from one to the next."""

    name: str
    edits: Sequence[Edit]
    faults: Mapping[str, int]
    fault_seconds: tuple[float, float] = field(default=(1.3, 2.1))


#: What leaves runs without their process, or without their lease.
KILLS = {"kill -9 child at work": 3, "kill -9 worker": 2}
STALLS = {"SIGSTOP worker": 3, "worker cut off": 1, "replies to worker held": 1}
REDELIVERIES = {"message delivered twice": 1}
BEATS = {"SIGSTOP leading beat": 1}

BREAKS = (
    Break(
        "leases are not renewed",
        [
            Edit(
                "ledger/renew.lua",
                "    keep(run, token)\n    if run.ending == 'cancelled'",
                "    if run.ending == 'cancelled'",
            )
        ],
        KILLS,
    ),
    Break(
        "a stale end is accepted",
        [
            Edit(
                "ledger/finish.lua",
                "local is_current = run.state == 'running' and run.token == token",
                "local is_current = run.state == 'running'",
            ),
        ],
        STALLS,
        (3.0, 4.0),
    ),
    Break(
        "a run that is at work begins again",
        [
            Edit(
                "ledger/begin.lua",
                "if run.state ~= 'queued' or run.last_token == token or is_stale then",
                "if run.state ~= 'queued' and run.state ~= 'running' then",
            )
        ],
        REDELIVERIES,
        (0.5, 1.0),
    ),
    Break(
        "duplicates are not dropped",
        [
            Edit(
                "ledger/begin.lua",
                "if run.state ~= 'queued' or run.last_token == token or is_stale then",
                "if run.state == 'waiting' then",
            ),
            Edit(
                "ledger/begin.lua",
                "if verdict ~= 'reasserted' and verdict ~= 'held' then return { 'expired' } end",
                "",
            ),
        ],
        REDELIVERIES,
        (0.5, 1.0),
    ),
    Break(
        "a late grant starts the body",
        [
            Edit(
                "guard/lease.py",
                "return clock() < trusted_until(asked_at, ttl)",
                "return True",
            )
        ],
        {"replies to worker held": 1},
        (2.0, 3.0),
    ),
    Break(
        "the watermark does not move",
        [
            Edit(
                "ledger/admit.lua",
                "'watermark', nominal, 'n:ticks',",
                "'emitted', nominal, 'n:ticks',",
            ),
        ],
        BEATS,
    ),
    Break(
        "runs of dead workers are not rescued",
        [
            Edit(
                "ledger/attempts.lua",
                "    return crash(run, 'lease expired', publish_at)\n",
                "    return nil\n",
            )
        ],
        {"kill -9 worker": 1},
    ),
    Break(
        "only a next tick rescues runs of dead workers",
        [Edit("ledger/rescue.lua", "for_each_due(K.leases, settle)\n", "")],
        {"kill -9 worker": 1},
    ),
    Break(
        "runs are rescued too early",
        [
            Edit(
                "ledger/rescue.lua",
                "'ZRANGEBYSCORE', index, '-inf', now,",
                "'ZRANGEBYSCORE', index, '-inf', index == K.leases and now + 3600 or now,",
            ),
            Edit(
                "ledger/attempts.lua",
                "  if owner == run.token then return nil end\n",
                "  local may_go_on = run.state ~= 'running' or ends_at > now + 3600\n"
                "  if owner == run.token and may_go_on then return nil end\n",
            ),
        ],
        KILLS,
    ),
    Break(
        "a living worker is taken for a dead one",
        [
            Edit(
                "guard/liveness.py",
                "    except OSError:\n        yield None\n    else:",
                "    except OSError:\n        yield os.fstat(fd).st_ino\n    else:",
            )
        ],
        KILLS,
    ),
    Break(
        "a finished run promotes no other",
        [
            Edit(
                "ledger/slots.lua",
                "  local is_done, _, next_up = pcall(promote, lock, publish_at)\n",
                "  local is_done, next_up = true, {}\n",
            )
        ],
        BEATS,
        (16.0, 18.0),
    ),
    Break(
        "what was not published is not sent again",
        [
            Edit(
                "beat/scheduler.py",
                "        while run_ids := self._ledger.outbox(RUNS_PER_PUBLISH):\n",
                "        while run_ids := []:\n",
            )
        ],
        KILLS,
    ),
    Break(
        "the leader's lock is not checked",
        [Edit("ledger/look.lua", "if owner and owner ~= token then", "if false then")],
        BEATS,
    ),
    Break(
        "an end is taken off the list before its followers have their places",
        [
            Edit(
                "beat/following.py",
                "        admissions = self._ledger.follow_up(decisions.runs, self._leadership)\n",
                "        runs, self._next = getattr(self, '_next', []), decisions.runs\n"
                "        admissions = self._ledger.follow_up(runs, self._leadership)\n",
            )
        ],
        {"kill -9 leading beat": 1},
        (16.0, 18.0),
    ),
    Break(
        "fencing tokens do not grow",
        [
            Edit(
                "ledger/leases.lua",
                "return math.max((before or 0) + 1, now_us) end",
                "return 1000000000 - now_us % 1000000000 end",
            )
        ],
        KILLS,
    ),
)


def broken_copy(broken: Break, directory: Path) -> None:
    """Puts the package into `directory`, with the break in it; raises PatchDoesNotApply."""
    copy = directory / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in broken.edits:
        path = copy / edit.path
        text = path.read_text()
        if (found := text.count(edit.old)) != 1:
            raise PatchDoesNotApply(f"{broken.name}: {edit.path} has {found} times: {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new))
