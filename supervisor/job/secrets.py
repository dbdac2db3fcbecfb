"""Secrets in schedule files: named by reference, resolved in the worker, masked in what is shown.

A schedule file names a secret, as ``${NAME}`` or ``${file:/run/secrets/x}``, and does not contain
it. Only this reference passes through the ledger, the broker, plans and pages. It is replaced where
the secret is used, in the process that has it. Only texts of schedule files are resolved: text from
anywhere else, such as the arguments of a trigger, is left as it is.

A file must lie in the directory of secrets. Otherwise an author of schedule files, or a program
that can write to the ledger, could have a worker read any file that the worker has access to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from supervisor.errors import SecretMissing

DEFAULT_DIRECTORY = "/run/secrets"

#: The variable that names another one.
DIRECTORY_VARIABLE = "SUPERVISOR_SECRETS_DIR"

LARGEST_SECRET = 64 * 1024

#: Either ``$${``, which stands for ``${``; or a reference; or an invalid one. Paths have no braces:
#: a search for its end stops where another reference begins, and so takes linear time.
TOKEN = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|\$\{file:(?P<file>/[^{}\0]+)\}|\$\{[^}]{0,40}\}?"
)

#: The way to one text in the arguments of a task: keys and indexes.
ArgumentPath = tuple[str | int, ...]

FORMS = "write ${NAME}, ${file:/run/secrets/name}, or $${ for the characters themselves"


def has_references(value: Any) -> bool:
    """Whether `resolved` would change anything in the value, or refuse it."""
    if isinstance(value, str):
        return "$" in value and TOKEN.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(has_references, value.values()))
    return isinstance(value, list | tuple) and any(map(has_references, value))


def malformed(text: str) -> list[str]:
    """The parts of the text that begin like a reference and are not valid ones."""
    return [token[0] for token in TOKEN.finditer(text) if token[0] != "$${" and not named(token)]


def named(token: re.Match[str]) -> bool:
    return bool(token["name"] or token["file"])


def resolved(value: Any, environ: Mapping[str, str], seen: dict[str, str] | None = None) -> Any:
    """The value with secrets in place of references. Raises SecretMissing.

    environ: the variables, and the directory of secrets by SUPERVISOR_SECRETS_DIR. seen: is filled
    with each secret and its reference.
    """

    def of(token: re.Match[str]) -> str:
        value = secret(token, environ)
        if seen is not None and named(token):
            seen[value] = token[0]
        return value

    return mapped(value, lambda text: TOKEN.sub(of, text))


def escaped(value: Any) -> Any:
    """The value as a schedule file has to write it, so that nothing in it is a reference."""
    return mapped(value, lambda text: text.replace("${", "$${"))


def secret(token: re.Match[str], environ: Mapping[str, str]) -> str:
    if token["name"]:
        value = environ.get(token["name"])
        if value is None:
            raise SecretMissing(token[0], "the variable is not set")
        return value
    if token["file"]:
        return content(token[0], Path(token["file"]), directory_of(environ))
    if token[0] == "$${":
        return "${"
    raise SecretMissing(token[0], FORMS)


def directory_of(environ: Mapping[str, str]) -> Path:
    """The directory that files of secrets must lie in."""
    return Path(environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


def outside(text: str, directory: Path) -> list[str]:
    """The references in the text to files that are not in the directory, as far as their names
    say and the links on this machine.
    """
    files = ((token[0], token["file"]) for token in TOKEN.finditer(text) if token["file"])
    return [reference for reference, file in files if not is_within(file, directory)]


def is_within(file: str, directory: Path) -> bool:
    return any(
        Path(whole(file)).is_relative_to(whole(directory))
        for whole in (os.path.normpath, os.path.realpath)
    )


def content(reference: str, path: Path, directory: Path) -> str:
    """A file's text without its trailing newline. Links may not lead out of the directory."""
    try:
        target = path.resolve(strict=True)
        if not target.is_relative_to(directory.resolve()):
            raise SecretMissing(reference, not_in(directory))
        if not target.is_file():
            raise SecretMissing(reference, "not a regular file")
        with target.open("rb") as stream:
            read = stream.read(LARGEST_SECRET + 1)
        if len(read) > LARGEST_SECRET:
            raise SecretMissing(reference, "the file is larger than 64 KiB")
        return read.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise SecretMissing(reference, error.strerror or type(error).__name__) from None
    except (RuntimeError, UnicodeDecodeError) as error:
        raise SecretMissing(reference, f"cannot be read: {type(error).__name__}") from None


def not_in(directory: Path) -> str:
    return f"it is not in {directory}, which {DIRECTORY_VARIABLE} names"


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """The value with each of its texts changed; keys of mappings stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [mapped(item, change) for item in value]
    if isinstance(value, Mapping):
        return {name: mapped(item, change) for name, item in value.items()}
    return value


def put(value: Any, path: ArgumentPath, text: str) -> None:
    """Replaces the text at a path that `texts_in` gave, in place."""
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = text


def texts_in(value: Any, path: ArgumentPath = ()) -> Iterator[tuple[ArgumentPath, str]]:
    """Each text in the value, and where it is."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from texts_in(item, (*path, number))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts_in(item, (*path, name))


# What is shown of arguments that a job's `mask` hides: in logs, lists, pages, plans, events.


#: In place of a value.
MASK = "***"

Mask = bool | Collection[str] | None
"""True: all arguments; names: these keyword arguments and params, at whatever depth."""


def masked(mask: Mask, value: Any) -> Any:
    """The arguments (args, kwargs, params) as they may be shown; None stays None."""
    if mask is True:
        return None if value is None else MASK
    return without(mask, value) if mask else value


def without(names: Collection[str], value: Any) -> Any:
    match value:
        case Mapping():
            return {k: MASK if k in names else without(names, v) for k, v in value.items()}
        case list() | tuple():
            return [without(names, item) for item in value]
        case _:
            return value


#: Shorter texts are no secrets, and occur in many other texts.
SHORTEST_HIDDEN = 4


def hidden_in(mask: Mask, value: Any) -> Iterator[str]:
    """Each text and number of the arguments that `masked` hides, as other texts may quote it."""
    match value:
        case Mapping():
            for name, item in value.items():
                is_named = mask and mask is not True and name in mask
                yield from hidden_in(True if is_named else mask, item)
        case list() | tuple():
            for item in value:
                yield from hidden_in(mask, item)
        case str() | int() | float() if mask is True and not isinstance(value, bool):
            yield str(value)


def without_hidden(text: str, hidden: Mapping[str, str]) -> str:
    """The text with what is to be shown in place of each hidden text, the longest first."""
    for each in sorted(hidden, key=len, reverse=True):
        if len(each) >= SHORTEST_HIDDEN:
            text = text.replace(each, hidden[each]).replace(repr(each)[1:-1], hidden[each])
    return text


def masked_url(url: str | None) -> str | None:
    """An address is a secret, since anyone who knows it can use it: ``https://hc-ping.com/***``.

    For schemes other than http and https only the scheme is shown: the first part may be a key.
    """
    if url is None or TOKEN.fullmatch(url):
        return url
    scheme, is_whole, _ = url.partition("://")
    if scheme in ("http", "https"):
        return f"{scheme}://{urlsplit(url).hostname}/{MASK}"
    return f"{scheme}://{MASK}" if is_whole and not TOKEN.search(scheme) else MASK
