"""A batch of ten thousand items that do nothing, beside the same with Celery alone.

The peers take turns, for a machine that is busy with something else is so for all of them. What is
compared is two that follow each other, and what is printed is the median of the rounds.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from supervisor.ledger.runs import Ledger
from supervisor.settings import Settings
from tests.acceptance.project import Project
from tests.bench.peers import Peer, peers

ITEMS = 10_000
ROUNDS = 3
WARM_UP = 200


def measure(project: Project) -> dict[str, float]:
    taking_part = peers(project.directory, project.url)
    for peer in taking_part:
        Ledger.open(Settings(redis_url=peer.url)).acknowledge_server()
    try:
        for peer in taking_part:
            peer.start()
            peer.seconds_for(WARM_UP)
        return figures(rounds(taking_part))
    finally:
        for peer in taking_part:
            peer.stop()


def rounds(taking_part: list[Peer]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for peer in taking_part:
            seconds[peer.name].append(peer.seconds_for(ITEMS))
    return seconds


def figures(seconds: dict[str, list[float]]) -> dict[str, float]:
    found = {}
    for other in ("plain", "chord"):
        pairs = zip(seconds[other], seconds["batch"], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        found[f"batch_vs_{other}"] = median(ratios)
        found[f"batch_vs_{other}_min"] = min(ratios)
        found[f"batch_vs_{other}_max"] = max(ratios)
    return found | {
        f"{name}_items_per_s": ITEMS / median(measured) for name, measured in seconds.items()
    }
