"""Lints the Lua with luacheck: the library as the server gets it, and each script that only reads.

``python -m tests.lua_lint`` names the files that the texts are made of. Without luacheck (Debian's
package is lua-check) it says so, and nothing is linted; in `.ci/run` that is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping

from supervisor.ledger.function_library import FOLDERS, READING, Library, source
from supervisor.store.keys import Keys

KEYS = Keys("supervisor")

OPTIONS = (
    *("--std", "lua51", "--read-globals", "redis", "cjson", "--max-line-length", "120"),
    # Each function of the library has both, and some need one of them.
    *("--ignore", "212/KEYS", "212/ARGV", "--formatter", "plain", "--codes"),
)

FINDING = re.compile(r"stdin:(\d+):(.*)")


def findings() -> Iterator[str]:
    """As ``supervisor/ledger/begin.lua:12:3: (W211) unused variable 'ttl'``."""
    library = Library(KEYS).text.partition("\n")[2]  # without the line that names it
    yield from findings_in(library, dict.fromkeys(FOLDERS.keys() - READING.keys()), ())
    for name, keys in READING.items():
        text = KEYS.lua(*keys) + source(name)
        yield from findings_in(text, {name: None}, ("--read-globals", "KEYS", "ARGV"))


def findings_in(text: str, names: Mapping[str, None], options: tuple[str, ...]) -> Iterator[str]:
    begins = {name: text[: text.index(source(name))].count("\n") for name in names}
    done = subprocess.run(
        ["luacheck", "-", *OPTIONS, *options], input=text, capture_output=True, text=True
    )
    found = FINDING.findall(done.stdout)
    if done.returncode > 1 or (done.returncode and not found):
        raise SystemExit(done.stdout + done.stderr)
    for number, rest in found:
        before = {begin: name for name, begin in begins.items() if begin < int(number)}
        begin = max(before, default=0)
        name = before.get(begin, "the keys")
        folder = FOLDERS.get(name, "ledger")
        yield f"supervisor/{folder}/{name}.lua:{int(number) - begin}:{rest}"


def main() -> int:
    if shutil.which("luacheck") is None:
        print("luacheck is not installed: the Lua was not linted", file=sys.stderr)  # noqa: T201
        return 1 if "CBS_CI_MARK" in os.environ else 0
    listed = list(findings())
    print(*listed, sep="\n", end="\n" if listed else "")  # noqa: T201
    return 1 if listed else 0


if __name__ == "__main__":
    sys.exit(main())
