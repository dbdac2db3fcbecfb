"""A command of a crontab: what the shell gets of it, and a name for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from supervisor.errors import NotTranslatable

#: Words that only prepare what follows them.
PREPARING = frozenset(
    {"cd", "test", "[", "[[", ":", ".", "source", "export", "set", "umask", "ulimit", "sleep"}
)

#: Words that run the rest of the line.
RUNNING = frozenset(
    {"sudo", "exec", "env", "time", "nice", "ionice", "nohup", "chronic", "timeout", "command"}
)

INTERPRETER = re.compile(r"(?:python|bash|sh|dash|zsh|perl|ruby|php|node)[\d.]*")
ASSIGNMENT = re.compile(r"\w+=.*", re.S)
SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".php", ".js")

#: An option, or the number or duration that belongs to one: `nice -n 10`, `timeout 5m`.
OPTION = re.compile(r"-.*|\d+[smhd]?")
PLAIN = re.compile(r"[A-Za-z][\w.:-]*")


#: Characters of a command in which its name is looked for.
LONGEST_START = 1_000


def shell_text(command: str) -> str:
    r"""What cron hands to the shell: `\%` is `%`. Raises NotTranslatable for a bare `%`.

    A bare % ends the command in cron, and what follows is its standard input.
    """
    parts = re.findall(r"\\.|[^\\]|\\$", command)
    if "%" in parts:
        raise NotTranslatable(
            "a bare % ends a command in cron and what follows is its input; "
            "put that into the command, or write \\% for a percent sign"
        )
    return "".join("%" if part == "\\%" else part for part in parts)


def name_of(command: str) -> str:
    """What a person would call it: its program, and the first plain word after it."""
    start = command[:LONGEST_START]
    words = next(filter(None, map(_without_wrappers, _simple_commands(start))), [])
    if not words:
        return "command"
    program, *rest = words
    if INTERPRETER.fullmatch(_base(program)) and (script := _script(rest)):
        program, *rest = script
    argument = next((word for word in rest if not OPTION.fullmatch(word)), "")
    base = _base(argument) if "://" not in argument else ""
    return "-".join([_base(program), *([base] if PLAIN.fullmatch(base) else [])])


def _simple_commands(command: str) -> Iterator[list[str]]:
    """The words between `&&`, `||`, `;` and `|`, without brackets and redirections."""
    for part in re.split(r"&&|\|\||[;|&](?!\d)", command):
        words = re.sub(r"\d?[<>]+&?\s*\S*", " ", part).strip().lstrip("({ ").rstrip(")} ")
        try:
            yield shlex.split(words)
        except ValueError:
            yield words.split()


def _without_wrappers(words: Sequence[str]) -> list[str]:
    """Nothing of what only prepares; else from the program on."""
    left = list(words)
    while left and (ASSIGNMENT.fullmatch(left[0]) or _base(left[0]) in RUNNING):
        is_wrapper = not ASSIGNMENT.fullmatch(left.pop(0))
        while is_wrapper and left and OPTION.fullmatch(left[0]):
            left.pop(0)
    return [] if left and left[0] in PREPARING else left


def _script(words: Sequence[str]) -> list[str]:
    """What an interpreter runs, or nothing where that is text of its own (`-c`)."""
    for place, word in enumerate(words):
        if word == "-m":
            return list(words[place + 1 :])
        if word in ("-c", "-e", "-r"):
            return []
        if not word.startswith("-"):
            return list(words[place:])
    return []


def _base(word: str) -> str:
    name = PurePosixPath(word).name
    return next((name.removesuffix(s) for s in SCRIPT_SUFFIXES if name.endswith(s)), name)
