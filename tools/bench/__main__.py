"""`make bench`: measures us and others, prints and writes docs/internals/benchmarks.*.

Figures of what is not measured this time stay as they were. A quick run writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import redis

from supervisor.deploy.embedded import EmbeddedServer
from tools.bench import (
    batches,
    emission,
    fleet,
    guarded,
    handover,
    lateness,
    machine,
    page,
    recovery,
    smoke,
)
from tools.bench.sizes import QUICK, Sizes

PAGES = Path(__file__).parents[2] / "docs" / "internals"
MEASUREMENTS = {
    "emission": emission,
    "lateness": lateness,
    "guarded": guarded,
    "handover": handover,
    "recovery": recovery,
    "fleet": fleet,
    "batches": batches,
    "smoke": smoke,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="some of " + ",".join(MEASUREMENTS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--rounds", type=int, help="how often those who are compared take turns")
    options = parser.parse_args()
    sizes = QUICK if options.quick else Sizes()
    if rounds := options.rounds:
        sizes = replace(sizes, rounds=rounds, rounds_of_guarded=rounds)
    names = options.only.split(",") if options.only else list(MEASUREMENTS)
    if unknown := set(names) - MEASUREMENTS.keys():
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}")
    file = PAGES / "benchmarks.json"
    figures = json.loads(file.read_text()) if file.exists() else {}
    took: dict[str, float] = {}
    for name in names:
        started = time.monotonic()
        found = measured(name, sizes)
        took[name] = time.monotonic() - started
        for figure, value in found.items():
            text = value if isinstance(value, str) else f"{value:.4f}"
            sys.stdout.write(f"{figure:<38}{text}\n")
        sys.stdout.flush()
        if not options.quick:
            figures |= {**found, **machine.described(), f"took_{name}_s": round(took[name])}
            if name != "smoke":
                rounds = sizes.rounds_of_guarded if name == "guarded" else sizes.rounds
                figures[f"rounds_{name}"] = rounds
            rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
            file.write_text(json.dumps(dict(sorted(rounded.items())), indent=1) + "\n")
            page.write(PAGES, rounded)
    for name, seconds in {**took, "together": sum(took.values())}.items():
        sys.stdout.write(f"{name:<12}{seconds / 60:5.1f} minutes\n")


def measured(name: str, sizes: Sizes) -> dict[str, float | str]:
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedServer(Path(directory) / "server") as server,
    ):
        # It would do so in one's turn and not in another's.
        redis.Redis.from_url(server.url).config_set("auto-aof-rewrite-percentage", 0)
        load, pace = machine.load(), machine.pace()
        figures = MEASUREMENTS[name].measure(Path(directory) / "sides", server.url, sizes)
        found: dict[str, float | str] = {**figures, f"measured_{name}": machine.today()}
        found[f"busy_{name}"] = f"{load} before, {machine.load()} after"
        found[f"pace_{name}"] = f"{pace} before, {machine.pace()} after"
    return found


if __name__ == "__main__":
    main()
