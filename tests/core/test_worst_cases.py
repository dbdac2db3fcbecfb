"""Every pattern and every parser of text from outside takes linear time, whatever the text is.

All regular expressions are found in the sources. Each is given texts that are made from itself:
what leads to one of its repetitions, then what that takes, very often, then what does not fit.
Parsers are given texts of repeated words that mean something to one of them.

Counted is processor time, against a bound for each character that is many times what it takes: a
text of 64,000 characters costs a quadratic pattern thousands of times the bound.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from supervisor import errors, times
from supervisor.catalog import yaml_source
from supervisor.errors import did_you_mean
from supervisor.features.adoption.imported import job_name
from supervisor.job import exclusions, secrets, templates
from supervisor.job.fields import is_address
from supervisor.job.run_ids import StepId, is_below
from supervisor.job.spec import JobSpec
from supervisor.operate.shapes import Trigger
from supervisor.operate.words import harmless
from supervisor.schedule import cron, rrule
from supervisor.store.address import SentinelUrl, database_of
from supervisor.web.access import host_in, is_loopback
from supervisor.web.actions import own_path
from supervisor.web.http import RequestRefused, validated

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_parse

PACKAGE = Path(__file__).parents[2] / "supervisor"
SIZES = (1_000, 8_000, 64_000)
PARSER_SIZES = (1_000, 16_000)

#: Processor seconds: a beginning, and for each character of a pattern's or of a parser's text.
START, PARSER_START = 0.1, 0.5
PATTERN_SECONDS, PARSER_SECONDS = 4e-6, 30e-6

FUNCTIONS = {
    f"re.{name}"
    for name in ("compile", "match", "fullmatch", "search", "findall", "finditer", "split", "sub")
}
NOW = datetime(2026, 11, 22, tzinfo=UTC)


@dataclass(frozen=True)
class Pattern:
    """A regular expression of the package, and how it is used."""

    place: str
    text: str
    flags: int
    uses: frozenset[str]

    @property
    def use(self) -> Callable[[str], object]:
        """Where it is looked for anywhere in a text, that; a beginning or a whole is less."""
        compiled = re.compile(self.text, self.flags)
        if self.uses & {"search", "findall", "finditer", "split", "sub"}:
            return compiled.findall
        return compiled.match if "match" in self.uses else compiled.fullmatch


def uses_of(call: ast.Call, sources: str, tree: ast.AST) -> frozenset[str]:
    """`re.match(...)` itself, or what is called of the name that a compiled one is given."""
    used = call.func.attr if isinstance(call.func, ast.Attribute) else "fullmatch"
    if used != "compile":
        return frozenset({used})
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and node.value is call:
            name = ast.unparse(node.targets[0])
            return frozenset(re.findall(rf"\b{name}\.(\w+)\(", sources))
    return frozenset({"fullmatch"})


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def whole() -> str:
    return "".join(sources().values())


@cache
def patterns_in(path: Path) -> list[Pattern]:
    return [*read_patterns(path)]


def read_patterns(path: Path) -> Iterator[Pattern]:
    tree = ast.parse(sources()[path])
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (argument := pattern_of(node)) is not None:
            place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
            names = [n.id for n in ast.walk(argument) if isinstance(n, ast.Name)]
            scope = scope_of(path, tree, names)
            code = compile(ast.Expression(argument), place, "eval")
            flags = re.S if "re.S" in ast.unparse(node) else 0
            yield Pattern(place, eval(code, scope), flags, uses_of(node, whole(), tree))


def pattern_of(call: ast.Call) -> ast.expr | None:
    """The expression of the pattern, where the call is one of `re` or gives a `pattern`."""
    function = call.func
    if isinstance(function, ast.Attribute) and ast.unparse(function) in FUNCTIONS:
        return call.args[0]
    return next((word.value for word in call.keywords if word.arg == "pattern"), None)


def scope_of(path: Path, tree: ast.AST, names: list[str]) -> dict[str, Any]:
    """Where the names of a pattern have values: its module, or assignments within a function."""
    if not names:
        return {}
    module = ".".join(["supervisor", *path.relative_to(PACKAGE).with_suffix("").parts])
    scope = dict(vars(importlib.import_module(module)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    scope.setdefault(target.id, node.value.value)
    return scope


def sample(parsed: Any) -> str:
    """A short text that the parsed expression takes, or nearly: of alternatives the first."""
    found = ""
    for kind, value in parsed:
        match str(kind):
            case "LITERAL":
                found += chr(value)
            case "NOT_LITERAL" | "ANY":
                found += "a"
            case "IN":
                found += members(value)[0]
            case "BRANCH":
                found += sample(value[1][0])
            case "SUBPATTERN":
                found += sample(value[3])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                found += sample(value[2]) * max(1, min(value[0], 5))
    return found


def members(value: Any) -> list[str]:
    """Characters of a class, of each of its parts one."""
    seen = []
    for kind, what in value:
        match str(kind):
            case "LITERAL":
                seen.append(chr(what))
            case "RANGE":
                seen.append(chr(what[0]))
            case "CATEGORY":
                name = str(what)
                seen.append("0" if "DIGIT" in name else " " if "SPACE" in name else "a")
    is_negated = any(str(kind) == "NEGATE" for kind, _ in value)
    return [c for c in "a @0" if c not in seen] if is_negated or not seen else seen


def repetitions(parsed: Any, before: str = "") -> Iterator[tuple[str, list[str]]]:
    """What leads to each repetition without a small bound, and what the repetition takes."""
    for kind, value in parsed:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT":
                if value[1] > 100:
                    body = list(value[2])
                    inner = (
                        members(body[0][1])
                        if len(body) == 1 and str(body[0][0]) == "IN"
                        else [sample(body) or "a"]
                    )
                    yield before, inner
                yield from repetitions(value[2], before)
            case "SUBPATTERN":
                yield from repetitions(value[3], before)
            case "BRANCH":
                for branch in value[1]:
                    yield from repetitions(branch, before)
        before += sample([(kind, value)])


def texts_for(pattern: Pattern) -> Iterator[tuple[str, str, str]]:
    """Beginning, what is repeated, and end."""
    parsed = list(sre_parse.parse(pattern.text, pattern.flags))
    whole = sample(parsed)
    pumps = {whole, whole[:-1], whole[: len(whole) // 2], *whole, " ", "a", "0", "@"} - {""}
    yield from (("", pump, end) for pump in sorted(pumps) for end in ("", "\0"))
    for before, inner in repetitions(parsed):
        for pump in inner:
            yield from ((begin, pump, end) for begin in {before, ""} for end in ("\0", "!", ""))
            yield "", before + pump, "\0"


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def times_of(
    work: Callable[[str], object], text: tuple[str, str, str], sizes: tuple[int, ...] = SIZES
) -> Iterator[Any]:
    begin, pump, end = text
    for size in sizes:
        written = begin + pump * (size // len(pump)) + end
        yield size, seconds(lambda written=written: work(written))  # type: ignore[misc]


#: Only these are parsed, each by its own test.
WITH_PATTERNS = [path for path, text in sources().items() if "re." in text or "pattern=" in text]


def test_the_sweep_knows_the_patterns_of_the_package() -> None:
    calls = sum(
        len(re.findall(r"\bre\.(?:compile|match|fullmatch|search|findall|split|sub)\(", text))
        for text in sources().values()
    )
    assert sum(len(patterns_in(path)) for path in WITH_PATTERNS) >= calls > 40


@pytest.mark.parametrize("path", WITH_PATTERNS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_pattern_takes_more_than_linear_time(path: Path) -> None:
    for pattern in patterns_in(path):
        for text in texts_for(pattern):
            for size, taken in times_of(pattern.use, text):
                assert taken < START + PATTERN_SECONDS * size, (pattern, text, size)


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"([^/]*@[^/]*)/(.+)", "fullmatch"),
        (r"A=(.*?)\s*", "fullmatch"),
        (r"(a+)+b", "match"),
        (r"\{f(/[^}]+)\}", "search"),
        (r"\d+:", "search"),
    ],
)
def test_the_sweep_notices_patterns_that_take_longer(pattern: str, use: str) -> None:
    slow = Pattern("here", pattern, 0, frozenset({use}))
    for begin, pump, end in texts_for(slow):
        for size in (16, 24, 4_000, 16_000):
            written = begin + pump * (size // len(pump)) + end
            if seconds(lambda text=written: slow.use(text)) > START:  # type: ignore[misc]
                return
    pytest.fail("no text was found that takes long")


def job(**keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "j", "task": "t", "every": "1h", **keys})


#: What is read from files, requests, addresses and the command line; after `|` a beginning.
PARSERS: dict[str, Callable[[str], object]] = {
    "duration|1m": times.parse_duration,
    "moment|2026-01-01T": times.parse_moment,
    "moment asked for|": lambda text: times.named_moment(text, ZoneInfo("UTC"), NOW, ahead=False),
    "exclusion|2026-01-01..": lambda text: exclusions.parse_all([text]),
    "cron|* * * * ": cron.parse,
    "rrule|FREQ=DAILY;BYDAY=": rrule.parse,
    "lock key|import:": lambda text: templates.lock_key(text, job="j", task="t"),
    "lock's placeholders|{": templates.placeholders,
    "references|${file:/": secrets.malformed,
    "has references|${": secrets.has_references,
    "resolved|$${": lambda text: secrets.resolved(text, {}),
    "zone|Europe/": lambda text: job(timezone=text),
    "name|a": lambda text: job(name=text),
    "address|https://": is_address,
    "ping_url|https://${": lambda text: job(ping_url=text),
    "YAML|jobs: {a: ": yaml_source.read,
    "YAML in blocks|jobs:\n  - ": yaml_source.read,
    "scalar|1": yaml_source.plain_value,
    "run id|a@": StepId.of,
    "run below|a@1/": is_below,
    "job's name|a": job_name,
    "address of Redis|redis://a:b@": database_of,
    "address of Sentinel|sentinel://": SentinelUrl.parse,
    "misspelt word|": lambda text: did_you_mean(text, ["overlap", "every", "x" * 1000]),
    "log line|\x1b[": harmless,
    "body|": lambda text: validated(Trigger, text),
    "body's arguments|{": lambda text: validated(Trigger, '{"args": [' + text),
    "host|localhost:": lambda text: is_loopback(host_in(text)),
    "target|/": own_path,
}

PLAIN = r"""
a 0 @ / # * x= 1m 1, \ " ' % ${ ${file:/ ${a} $ { } {a} {0 [ ] ( , ; : - && .. +1MO, BYDAY= ! ?
é "a": // %41 = | < ~
"""
SPACED = (" ", "a ", "* ", "\n", "BEGIN:VEVENT\n", "\n ", "a: ", "- ", "\t", "\r\n", "2026-01-01 ")
WORDS = [*PLAIN.split(), *SPACED, "\x9b", "\u0660", "\u2028"]


def refuses(parser: Callable[[str], object], text: str) -> None:
    with suppress(errors.SupervisorError, ValueError, LookupError, RequestRefused):
        parser(text)


@pytest.mark.parametrize("name", PARSERS)
def test_no_parser_takes_more_than_linear_time(name: str) -> None:
    parser = PARSERS[name]
    begin = name.partition("|")[2]
    refuses(parser, begin)  # what it imports late is not to be timed
    for word in WORDS:
        for text in ((begin, word, ""), ("", word, "\0")):
            for size, taken in times_of(partial(refuses, parser), text, PARSER_SIZES):
                assert taken < PARSER_START + PARSER_SECONDS * size, (name, text, size, taken)
