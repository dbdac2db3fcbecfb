"""Ways in which the product can be broken, each as an edit of a copy of its package.

A break names what a promise rests on. `make chaos-catches` starts the processes with the copy, and
the campaign must find that a promise was not kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    name: str

    faults: Mapping[str, int]
    """Those under which it shows, and their weights."""

    edits: Sequence[Edit]

    fault_seconds: tuple[float, float]
    """From one fault to the next."""


def break_of(
    name: str,
    faults: Mapping[str, int],
    *edits: tuple[str, str, str],
    seconds: tuple[float, float] = (1.3, 2.1),
) -> Break:
    """edits: of each the file, what is there, and what it becomes."""
    return Break(name, faults, [Edit(*edit) for edit in edits], seconds)


#: What leaves runs without their process, or without their lease.
KILLS = {"kill -9 child at work": 3, "kill -9 worker": 2}
STALLS = {"SIGSTOP worker": 3, "worker cut off": 1, "replies to worker held": 1}
REDELIVERIES = {"message delivered twice": 1}
EDITS = {"job edited": 1}
BEATS = {"SIGSTOP leading beat": 1}
OLDER = {"older snapshot restored": 1, "lagging replica promoted": 1}

#: Where a worker that is gone is known by its leases alone, and no other process reports its runs.
NO_PROOF = ("guard/lock_file.py", "        yield os.fstat(fd).st_ino\n", "        yield None\n")

BREAKS = (
    break_of(
        "leases are not renewed",
        KILLS,
        (
            "ledger/renew.lua",
            "    keep(run, token)\n    if run.ending == 'cancelled'",
            "    if run.ending == 'cancelled'",
        ),
    ),
    break_of(
        "a stale end is accepted",
        STALLS,
        (
            "ledger/finish.lua",
            "local is_current = run and run.state == 'running' and run.token == token",
            "local is_current = run and run.state == 'running'",
        ),
        seconds=(3.0, 4.0),
    ),
    break_of(
        "a run that is at work begins again",
        REDELIVERIES,
        (
            "ledger/begin.lua",
            "if run.state ~= 'queued' or run.last_token == token or is_stale then",
            "if run.state ~= 'queued' and run.state ~= 'running' then",
        ),
        seconds=(0.5, 1.0),
    ),
    break_of(
        "duplicates are not dropped",
        REDELIVERIES,
        (
            "ledger/begin.lua",
            "if run.state ~= 'queued' or run.last_token == token or is_stale then",
            "if run.state == 'waiting' then",
        ),
        (
            "ledger/begin.lua",
            "if verdict ~= 'reasserted' and verdict ~= 'prolonged' then "
            "return refusal('expired') end",
            "",
        ),
        seconds=(0.5, 1.0),
    ),
    break_of(
        "a late grant starts the body",
        {"replies to worker held": 1},
        ("guard/lease.py", "return clock() < trusted_until(requested_at, ttl)", "return True"),
        seconds=(2.0, 3.0),
    ),
    break_of(
        "the watermark does not move",
        BEATS,
        ("ledger/admit.lua", "'watermark', nominal, 'n:ticks',", "'emitted', nominal, 'n:ticks',"),
    ),
    break_of(
        "runs of dead workers are not rescued",
        {"kill -9 worker": 1},
        (
            "ledger/ends.lua",
            "    return crash(run, 'lease expired')\n",
            "    return nil\n",
        ),
        NO_PROOF,
    ),
    break_of(
        "only a next tick rescues runs of dead workers",
        {"kill -9 worker of a rare run": 1},
        ("ledger/rescue.lua", "for_each_due(K.leases, rescue_run)\n", ""),
        NO_PROOF,
    ),
    break_of(
        "runs are rescued too early",
        KILLS,
        (
            "ledger/rescue.lua",
            "'ZRANGEBYSCORE', index, '-inf', now,",
            "'ZRANGEBYSCORE', index, '-inf', index == K.leases and now + 3600 or now,",
        ),
        (
            "ledger/ends.lua",
            "  if owner == run.token then return nil end\n",
            "  local may_go_on = run.state ~= 'running' or ends_at > now + 3600\n"
            "  if owner == run.token and may_go_on then return nil end\n",
        ),
    ),
    break_of(
        "a living worker is taken for a dead one",
        KILLS,
        (
            "guard/lock_file.py",
            "    except OSError:\n        yield None\n    else:",
            "    except OSError:\n        yield os.fstat(fd).st_ino\n    else:",
        ),
    ),
    break_of(
        "a finished run promotes no other",
        BEATS,
        (
            "ledger/ends.lua",
            "  pcall(promote, run.rules.lock)",
            "  pcall(function() end)",
        ),
        seconds=(16.0, 18.0),
    ),
    break_of(
        "a message is pushed, and its run's record is not written",
        REDELIVERIES,
        (
            "ledger/slots.lua",
            "  redis.call('HSET', key, unpack(fields))\n  if new and message then\n",
            "  if new or not message then redis.call('HSET', key, unpack(fields)) end\n"
            "  if new and message then\n",
        ),
        seconds=(3.0, 4.0),
    ),
    break_of(
        "a run's record is written, and its message is not pushed",
        REDELIVERIES,
        (
            "ledger/slots.lua",
            "    push(message.list, { message.text }, { run.id })\n",
            "",
        ),
        seconds=(3.0, 4.0),
    ),
    break_of(
        "a message is pushed twice",
        BEATS,
        (
            "ledger/messages.lua",
            "redis.pcall('LPUSH', list, unpack(texts))",
            "redis.pcall('LPUSH', list, unpack(texts), unpack(texts))",
        ),
        seconds=(16.0, 18.0),
    ),
    break_of(
        "an edited job keeps its message",
        EDITS,
        (
            "ledger/load.lua",
            "  redis.call('DEL', K.message(job))\n  note_former(job, change.content)\n",
            "  note_former(job, change.content)\n",
        ),
        (
            "ledger/keep_messages.lua",
            "    and not is_kept(job, messages, made.apart) then\n",
            "    and redis.call('EXISTS', K.message(job)) == 0 then\n",
        ),
        seconds=(4.0, 6.0),
    ),
    break_of(
        "the outbox is not sent",
        KILLS,
        (
            "beat/publishing.py",
            "        while run_ids := self._ledger.outbox(RUNS_PER_PUBLISH):\n",
            "        while run_ids := []:\n",
        ),
    ),
    break_of(
        "the leader's lock is not checked",
        BEATS,
        ("ledger/poll.lua", "if owner and owner ~= token then", "if false then"),
    ),
    break_of(
        "an end is taken off the list before its followers have their places",
        {"kill -9 leading beat": 1},
        (
            "features/following/step.py",
            "        admissions = self._ledger.follow_up(decisions.runs)\n",
            "        runs, self._next = getattr(self, '_next', []), decisions.runs\n"
            "        admissions = self._ledger.follow_up(runs)\n",
        ),
        seconds=(16.0, 18.0),
    ),
    break_of(
        "an attempt that an older ledger does not know counts as over",
        OLDER,
        (
            "ledger/comebacks.lua",
            "  return (comebacks.is_whole(run) or run.parent) and 'forgotten' or 'unknown'\n",
            "  return 'over'\n",
        ),
        (
            "ledger/begin.lua",
            "local granted_from = grace_end(run)\n",
            "local granted_from = 0\n",
        ),
        seconds=(8.0, 9.0),
    ),
    break_of(
        "a run is written back without its rules",
        OLDER,
        (
            "ledger/restore.lua",
            "'nominal', nominal, 'rules', call.rules, 'lock'",
            "'nominal', nominal, 'lock'",
        ),
        seconds=(8.0, 9.0),
    ),
    break_of(
        "what a job raises ends the line that it is written in",
        REDELIVERIES,
        (
            "ledger/run_record.py",
            'text.removesuffix("\\n").split("\\n") if text else []',
            "(text or '').splitlines()",
        ),
        (
            "ledger/run_reads.py",
            "    except (ValueError, KeyError, TypeError, OverflowError) as error:\n",
            "    except (KeyError, TypeError, OverflowError) as error:\n",
        ),
        seconds=(1.0, 2.0),
    ),
    break_of(
        "fencing tokens do not grow",
        KILLS,
        (
            "ledger/slots.lua",
            "return math.max((before or 0) + 1, now_us) end",
            "return 1000000000 - now_us % 1000000000 end",
        ),
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
