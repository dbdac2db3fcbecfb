"""Judges mutants of the checkout's Lua and of its critical Python; see `--help`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import redis
import yaml

from supervisor.deploy.embedded import EmbeddedServer
from tests.waiting import scaled
from tools.mutants.judges import BROKEN, judges_of
from tools.mutants.mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.yaml")

#: For a file of tests, on average of those that judge one mutant.
SECONDS_EACH = 6.0


def all_mutants() -> list[Mutant]:
    files = sorted(path for pattern in BROKEN for path in ROOT.glob(pattern))
    names = {str(path.relative_to(ROOT)): path for path in files}
    return [each for name, path in names.items() for each in mutants_of(name, path.read_text())]


def spread(mutants: list[Mutant]) -> list[Mutant]:
    """In an order that is always the same, in which the first ones are of all files."""
    return sorted(mutants, key=lambda each: hashlib.sha256(each.id.encode()).digest())


def only_code(mutants: list[Mutant]) -> list[Mutant]:
    """Without what no server would take for Lua."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedServer(Path(directory)) as server:
        client = redis.Redis.from_url(server.url)
        return [each for each in mutants if is_code(client, each)]


def is_code(client: Any, mutant: Mutant) -> bool:
    if not mutant.file.endswith(".lua"):
        return True
    text = mutant.applied_to((ROOT / mutant.file).read_text())
    return bool(client.eval("return loadstring(ARGV[1]) and 1 or 0", 0, text))


def equivalent() -> dict[str, str]:
    """Reasons by id."""
    entries = yaml.safe_load(EQUIVALENT.read_text()) or []
    return {f"{e['file']} | {e['line']} | {e['mutation']}": e["reason"] for e in entries}


def stale(reasons: dict[str, str], mutants: list[Mutant]) -> list[str]:
    return sorted(reasons.keys() - {mutant.id for mutant in mutants})


class Results:
    """By the mutant's id; kept in a file, so that a run can be continued."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_id: dict[str, dict[str, Any]] = (
            json.loads(path.read_text()) if path.exists() else {}
        )
        self._lock = threading.Lock()

    def add(self, mutant: Mutant, result: dict[str, Any]) -> None:
        with self._lock:
            self.by_id[mutant.id] = result
            written = self.path.with_suffix(".new")
            written.write_text(json.dumps(self.by_id, indent=1))
            written.replace(self.path)

    def is_noticed(self, mutant: Mutant) -> bool | None:
        result = self.by_id.get(mutant.id)
        return None if result is None else bool(result["noticed"])


class Slot:
    """A process that judges in a copy of the checkout, in a process group of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        for name in filter(None, files):
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)
        steps = {"SUPERVISOR_SOAK_STEPS": os.environ.get("SUPERVISOR_SOAK_STEPS", "600")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.mutants.slot"],
            cwd=directory,
            env={
                **os.environ,
                **steps,
                "PYTHONPATH": str(directory),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        text = mutant.applied_to((self.directory / mutant.file).read_text())
        return self._asked(mutant.file, text, judges_of(mutant.file))

    def judge_none(self, mutants: list[Mutant]) -> dict[str, Any]:
        """What the tests of these say of the files as they are."""
        tests = {test for mutant in mutants for test in judges_of(mutant.file)}
        file = mutants[0].file
        return self._asked(file, (self.directory / file).read_text(), sorted(tests))

    def _asked(self, file: str, text: str, tests: list[str]) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        each = scaled(SECONDS_EACH)
        asked = {"file": file, "text": text, "tests": tests, "seconds_each": each}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def judge_all(mutants: list[Mutant], results: Results, slots: int) -> None:
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)

    def work(slot: Slot) -> None:
        with suppress(queue.Empty):
            while True:
                mutant = waiting.get_nowait()
                result = slot.judge(mutant)
                results.add(mutant, result)
                print(f"{'noticed' if result['noticed'] else 'LEFT   '} {mutant.id}", flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ExitStack() as stack:
        found = [Slot(Path(directory) / str(number)) for number in range(slots)]
        for slot in found:
            stack.callback(slot.close)
        if mutants and (said := found[0].judge_none(mutants))["noticed"]:
            raise SystemExit(f"the tests fail without a mutant: {said['by']}")
        threads = [threading.Thread(target=work, args=(slot,)) for slot in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--only", default="*", help="files whose paths fit, such as '*/admit*.lua'")
    parser.add_argument("--most", type=int, help="judge no more than so many further ones")
    parser.add_argument("--slots", type=int, default=2, help="how many are judged at once")
    parser.add_argument("--results", type=Path, default=ROOT / ".mutants.json")
    parser.add_argument("--list", action="store_true", help="judge none: name those that were left")
    options = parser.parse_args()

    mutants, reasons, results = (
        spread(only_code(all_mutants())),
        equivalent(),
        Results(options.results),
    )
    if gone := stale(reasons, mutants):
        print("named equivalent, but there is no such mutant:", *gone, sep="\n  ")  # noqa: T201
        return 2
    asked = [
        each for each in mutants if fnmatch(each.file, options.only) and each.id not in reasons
    ]
    chosen = [each for each in asked if not results.is_noticed(each)]
    chosen.sort(key=lambda each: results.is_noticed(each) is not None)  # new ones first
    if not options.list:
        judge_all(chosen[: options.most], results, options.slots)

    counts = Counter(results.is_noticed(mutant) for mutant in asked)
    left = [mutant.id for mutant in asked if results.is_noticed(mutant) is False]
    print(  # noqa: T201
        f"{counts[True] + counts[False]} tried of {len(asked)}: {counts[True]} noticed, "
        f"{len(left)} left; {len(reasons)} more are equivalent",
        *sorted(left),
        sep="\n  ",
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
