"""The faults: what is done to whom, and how often. Each spares what must be left to go on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from supervisor.ledger.leader import LEADER_TTL
from supervisor.store.connection import TIMEOUT_SECONDS
from tests.proxy import proxy_to
from tools.chaos.chronicle import Kind, OpenWindow
from tools.chaos.cluster import Cluster
from tools.chaos.jobs import LEASE_TTL
from tools.chaos.member import Member
from tools.chaos.witness import at_work, groups_at_work

#: Long enough for a lease, or for the leader's lock, to run out meanwhile.
WORKER_FREEZE_SECONDS = (LEASE_TTL + 2.0, LEASE_TTL + 4.0)
HANG_SECONDS = (LEASE_TTL + 1.0, LEASE_TTL + 2.5)

#: As long as a reply can come late: a call is given up after five seconds.
CUT_OFF_SECONDS = (LEASE_TTL + 0.4, TIMEOUT_SECONDS + 1.0)
BEAT_FREEZE_SECONDS = (LEADER_TTL.total_seconds() + 1.0, LEADER_TTL.total_seconds() + 3.0)
REDIS_AWAY_SECONDS = (0.3, 1.5)

#: By how much a ledger is older when it comes back.
OLDER_SECONDS = (1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    weight: int

    strike: Callable[[Cluster, Member | None], bool]
    """Does it, and says whether there was a victim."""

    is_kill: bool = True


def strike(cluster: Cluster, leader: Member | None, faults: Sequence[Fault]) -> None:
    """One fault, drawn by weight from those that find a victim."""
    left = list(faults)
    while left:
        [fault] = cluster.rng.choices(left, [fault.weight for fault in left])
        if fault.strike(cluster, leader):
            cluster.chronicle.struck(fault.name, fault.is_kill)
            return
        left.remove(fault)


def kill_any_child(cluster: Cluster, _: Member | None) -> bool:
    return kill_one_of(cluster, pool_of_the_ready(cluster))


def kill_child_at_work(cluster: Cluster, _: Member | None) -> bool:
    return kill_one_of(cluster, pool_of_the_ready(cluster) & at_work(cluster.witness))


def pool_of_the_ready(cluster: Cluster) -> set[int]:
    return {pid for worker in cluster.workers if worker.is_ready for pid in worker.children()}


def kill_one_of(cluster: Cluster, children: set[int]) -> bool:
    if not children:
        return False
    victim = cluster.rng.choice(sorted(children))
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
        cluster.coroner.killed(victim)
        cluster.chronicle.ended(victim)
    return True


def kill_worker(cluster: Cluster, _: Member | None) -> bool:
    return end(cluster, signal.SIGKILL)


def kill_worker_of_rare(cluster: Cluster, _: Member | None) -> bool:
    """Of a run that no next tick brings forward by the way."""
    groups = groups_at_work(cluster.witness, "rare")
    ready = [worker for worker in cluster.workers if worker.is_ready]
    victim = next((worker for worker in ready if worker.pid in groups), None)
    if victim is None or len(ready) < 2:
        return False
    cluster.chronicle.ended(victim.pid)
    return send(victim, signal.SIGKILL)


def end_worker(cluster: Cluster, _: Member | None) -> bool:
    return end(cluster, signal.SIGTERM)


def end(cluster: Cluster, number: signal.Signals) -> bool:
    worker = one_to_spare(cluster.workers, cluster.rng)
    if worker is not None:
        cluster.chronicle.ended(worker.pid)
    return send(worker, number)


def kill_leader(cluster: Cluster, leader: Member | None) -> bool:
    return kill_beat(cluster, leader)


def kill_standby(cluster: Cluster, leader: Member | None) -> bool:
    return kill_beat(cluster, next((beat for beat in cluster.beats if beat is not leader), None))


def kill_beat(cluster: Cluster, beat: Member | None) -> bool:
    if beat is None or not all(beat.is_ready for beat in cluster.beats):
        return False
    cluster.chronicle.opened(Kind.NO_LEADER)
    return send(beat, signal.SIGKILL)


def freeze_worker(cluster: Cluster, _: Member | None) -> bool:
    worker = one_to_spare(cluster.workers, cluster.rng)
    if worker is None:
        return False
    window = cluster.chronicle.opened(Kind.FROZEN, group=worker.pid)
    worker.freeze()

    def resume() -> None:
        worker.thaw()
        cluster.chronicle.closed(window)

    cluster.agenda.later(cluster.rng.uniform(*WORKER_FREEZE_SECONDS), resume)
    return True


def freeze_leader(cluster: Cluster, leader: Member | None) -> bool:
    if leader is None or not all(beat.is_ready for beat in cluster.beats):
        return False
    cluster.chronicle.opened(Kind.NO_LEADER)
    leader.freeze()
    cluster.agenda.later(cluster.rng.uniform(*BEAT_FREEZE_SECONDS), leader.thaw)
    return True


def cut_off_worker(cluster: Cluster, _: Member | None) -> bool:
    return cut_off(cluster, replies_alone=False)


def hold_replies(cluster: Cluster, _: Member | None) -> bool:
    return cut_off(cluster, replies_alone=True)


def cut_off(cluster: Cluster, *, replies_alone: bool) -> bool:
    worker = one_to_spare(cluster.workers, cluster.rng)
    if worker is None:
        return False
    window = cluster.chronicle.opened(Kind.LINK, group=worker.pid)
    worker.cut(replies_alone=replies_alone)

    def join() -> None:
        worker.join()
        cluster.chronicle.closed(window)

    cluster.agenda.later(cluster.rng.uniform(*CUT_OFF_SECONDS), join)
    return True


def lose_replies_of_beats(cluster: Cluster, _: Member | None) -> bool:
    for beat in cluster.beats:
        beat.way.replies_to_lose = 1
    return True


def deliver_twice(cluster: Cluster, _: Member | None) -> bool:
    cluster.redelivery.twice()
    return True


def lose_message(cluster: Cluster, _: Member | None) -> bool:
    cluster.chronicle.ended(0)
    cluster.redelivery.never()
    return True


def edit_job(cluster: Cluster, _: Member | None) -> bool:
    cluster.version += 1
    cluster.schedule()
    return True


def hang_redis(cluster: Cluster, _: Member | None) -> bool:
    if not cluster.answers:
        return False
    window = cluster.chronicle.opened(Kind.HUNG)
    cluster.chronicle.opened(Kind.NO_LEADER)
    cluster.hang()

    def wake() -> None:
        cluster.wake()
        cluster.chronicle.closed(window)

    cluster.agenda.later(cluster.rng.uniform(*HANG_SECONDS), wake)
    return True


def kill_redis(cluster: Cluster, _: Member | None) -> bool:
    if not cluster.answers or cluster.is_being_copied:
        return False
    window = cluster.chronicle.opened(Kind.REDIS)
    cluster.chronicle.opened(Kind.NO_LEADER)
    cluster.server.kill()

    def restart() -> None:
        cluster.server.start()
        cluster.chronicle.closed(window)

    cluster.agenda.later(cluster.rng.uniform(*REDIS_AWAY_SECONDS), restart)
    return True


def restore_older(cluster: Cluster, _: Member | None) -> bool:
    """A snapshot is restored: what the server has learned since is lost."""
    if not cluster.answers or cluster.is_being_copied:
        return False
    copy = cluster.directory / "older"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(cluster.server.directory, copy)

    def restore() -> None:
        cluster.restore(copy)

    return becomes_older(cluster, restore)


def promote_lagging(cluster: Cluster, _: Member | None) -> bool:
    """The replica that takes over had not heard of what came last."""
    if not cluster.answers or cluster.is_being_copied:
        return False
    links = ExitStack()
    way = links.enter_context(proxy_to(cluster.server.url))
    replica = cluster.replica(way)
    way.freeze()

    def promote() -> None:
        cluster.promote(replica)
        links.close()  # and not before: what is on its way is not to arrive

    return becomes_older(cluster, promote)


def becomes_older(cluster: Cluster, come_back: Callable[[], None]) -> bool:
    """From now on the server learns in vain; it is killed some seconds later, and comes back."""
    since, window = time.monotonic(), cluster.chronicle.opened(Kind.OLDER)
    cluster.is_being_copied = True

    def kill() -> None:
        if cluster.is_hung or not cluster.server.is_alive:
            cluster.agenda.later(OLDER_SECONDS[0], kill)
            return
        away = cluster.chronicle.opened(Kind.REDIS)
        cluster.chronicle.opened(Kind.NO_LEADER)
        cluster.server.kill()
        cluster.agenda.later(cluster.rng.uniform(*REDIS_AWAY_SECONDS), lambda: again(away))

    def again(away: OpenWindow) -> None:
        come_back()
        cluster.is_being_copied, cluster.older_since = False, since
        cluster.chronicle.closed(away)
        cluster.chronicle.closed(window)

    cluster.agenda.later(cluster.rng.uniform(*OLDER_SECONDS), kill)
    return True


#: Those that open windows are rare: most of the time, nothing may excuse anything.
FAULTS = (
    Fault("kill -9 child at work", 12, kill_child_at_work),
    Fault("kill -9 any child", 8, kill_any_child),
    Fault("kill -9 worker", 7, kill_worker),
    Fault("kill -9 worker of a rare run", 1, kill_worker_of_rare),
    Fault("SIGTERM worker", 4, end_worker),
    Fault("kill -9 leading beat", 1, kill_leader),
    Fault("kill -9 standby beat", 2, kill_standby),
    Fault("kill -9 redis", 1, kill_redis),
    Fault("older snapshot restored", 1, restore_older),
    Fault("lagging replica promoted", 1, promote_lagging),
    Fault("SIGSTOP worker", 2, freeze_worker, is_kill=False),
    Fault("SIGSTOP leading beat", 1, freeze_leader, is_kill=False),
    Fault("SIGSTOP redis", 1, hang_redis, is_kill=False),
    Fault("worker cut off", 2, cut_off_worker, is_kill=False),
    Fault("replies to worker held", 2, hold_replies, is_kill=False),
    Fault("replies to beats lost", 2, lose_replies_of_beats, is_kill=False),
    Fault("message delivered twice", 4, deliver_twice, is_kill=False),
    Fault("message lost", 2, lose_message, is_kill=False),
    Fault("job edited", 3, edit_job, is_kill=False),
)


def chosen(weights: Mapping[str, int]) -> Sequence[Fault]:
    """Those alone, with these weights."""
    known = {fault.name: fault for fault in FAULTS}
    return [replace(known[name], weight=weight) for name, weight in weights.items()]


def one_to_spare(workers: list[Member], rng: random.Random) -> Member | None:
    """A worker that does its work, if another does too."""
    ready = [worker for worker in workers if worker.is_ready]
    return rng.choice(ready) if len(ready) > 1 else None


def send(member: Member | None, number: signal.Signals) -> bool:
    if member is None:
        return False
    member.send(number)
    return True
