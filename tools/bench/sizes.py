"""How much is measured: enough to trust, or just enough to see that everything works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 3
    #: What keeps the machine busy beside a short measurement comes and goes: it has more rounds.
    rounds_of_guarded: int = 9
    jobs: int = 10_000
    jobs_of_slow_peers: int = 2_000
    spread_jobs: int = 1_000
    spread_seconds: int = 60
    calls: int = 2_000
    items: int = 10_000
    items_of_a_chord: int = 1_000
    handovers: int = 100
    idle_seconds: float = 30
    growth: tuple[int, ...] = (100, 1_000, 10_000)

    def in_turns(self) -> Iterator[int]:
        """The sizes of `growth`, round for round."""
        for _ in range(self.rounds):
            yield from self.growth


QUICK = Sizes(
    rounds=1,
    rounds_of_guarded=1,
    jobs=1_000,
    jobs_of_slow_peers=300,
    spread_jobs=200,
    spread_seconds=12,
    calls=400,
    items=1_000,
    items_of_a_chord=300,
    handovers=20,
    idle_seconds=5,
    growth=(100, 1_000),
)
