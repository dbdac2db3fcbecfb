"""The app's name -> a Dockerfile: its packages and its code, for every process of a deployment.

Paths are as seen from the directory in which the image is built.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from supervisor.deploy.directory import Files, Templates
from supervisor.deploy.plan import PORT
from supervisor.errors import SupervisorError


class Images:
    """The container images that are rendered, by version; pin them by digest where you deploy."""

    APP = f"celery-beat-supervisor:{version('celery-beat-supervisor')}"
    VALKEY = "valkey/valkey:8.1.3-alpine"
    PROMETHEUS = "prom/prometheus:v3.5.0"
    ALERTMANAGER = "prom/alertmanager:v0.28.1"
    GRAFANA = "grafana/grafana:12.1.1"

    # Where things lie in a container; the Dockerfile makes them.
    APP_DIRECTORY = "/srv/app"
    SCHEDULES = "/etc/supervisor/schedules"
    ACCESS = "/etc/supervisor/access"
    STATE = "/var/lib/supervisor"
    USER_ID = 10001


class NotInContext(SupervisorError):
    """A file lies outside the directory that is sent to the engine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(f"{path} is not below the current directory, in which the image is built")


@dataclass(frozen=True, slots=True)
class Copy:
    """target: below the app's directory in the image."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """requirements: what pip installs. beside: paths of what else it reads. variables: those that
    the requirements refer to. copies: the app's code, and what else it needs.
    """

    requirements: str
    beside: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    copies: tuple[Copy, ...] = ()

    @property
    def read_by_pip(self) -> tuple[str, ...]:
        return self.requirements, *self.beside

    @property
    def mounts(self) -> str:
        """Secrets that only the step that installs has."""
        files = {"pip.conf": "/etc/pip.conf", "netrc": "/root/.netrc"}
        optional = [f"--mount=type=secret,id={id},target={path}" for id, path in files.items()]
        needed = [f"--mount=type=secret,id={name},required=true" for name in self.variables]
        return " \\\n    ".join([*optional, *needed])

    @property
    def exports(self) -> str:
        words = [f'export {name}="$(cat /run/secrets/{name})" && ' for name in self.variables]
        return "".join(words)

    @classmethod
    def of(cls, app: str, requirements: Path, copied: Iterable[Path]) -> ImageOptions:
        """app: as in `celery -A`, and importable. Raises NotInContext, RequirementsUnusable."""
        own = code_of(app)
        others = (Copy(path, path) for path in map(in_context, copied))
        read = Requirements.read(Path(in_context(requirements)))
        first, *beside = read.paths
        copies = (*([own] if own else []), *others)
        return cls(first, tuple(beside), tuple(read.variables), copies)


def render_image(options: ImageOptions) -> Files:
    templates = Templates("image", options=options, images=Images, port=PORT)
    templates.add_filters(paths=json.dumps, word=shlex.quote)
    return {
        "Dockerfile": templates.render("Dockerfile"),
        "Dockerfile.dockerignore": templates.render("dockerignore"),
    }


def code_of(app: str) -> Copy | None:
    """The app's outermost package, or its module; None where pip has installed it."""
    name = app.partition(":")[0].partition(".")[0]
    spec = find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [])
    path = Path(folders[0] if folders else str(spec.origin))
    try:
        source = in_context(path)
    except NotInContext:
        return None
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return None if installed else Copy(source, path.name)


def in_context(path: Path) -> str:
    """Raises NotInContext."""
    relative = Path(os.path.relpath(path))
    if os.pardir in relative.parts:
        raise NotInContext(path)
    return relative.as_posix()


# What pip needs beside a requirements.txt in the build stage.
#
# pip reads more than one file: those named with -r and -c, wheels and folders by their paths, the
# folders of --find-links. All are copied to the same place below the build directory, from which
# pip resolves paths. ${NAME} in them is a variable that the build is given as a secret. What cannot
# be copied is a problem of its line.


#: As pip has it: capital letters alone.
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")

COMMENT = re.compile(r"(^|\s)#.*$")

FILES = re.compile(r"^(?:-r|-c|--requirement|--constraint)[ =]?\s*(.+)$")
LINKS = re.compile(r"^(?:-f|--find-links)[ =]?\s*(.+)$")
EDITABLE = re.compile(r"^(?:-e|--editable)[ =]?\s*(.+)$")

#: ``proj[extra] @ https://...``
NAMED = re.compile(r"^[\w.-]+(\[[^\]]*\])?\s*@")

ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")


class RequirementsUnusable(SupervisorError):
    """Lines of the requirements that the build of an image cannot have; all of them at once."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class _Unusable(Exception):
    """What a line names cannot be copied."""


@dataclass(slots=True)
class Requirements:
    """paths: as seen from the current directory, the given file first. variables: of secrets.

    problems: of lines, empty after `read`.
    """

    paths: list[str] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Requirements:
        """Raises RequirementsUnusable."""
        found = cls()
        found._add_file(file, str(file))
        if found.problems:
            raise RequirementsUnusable(found.problems)
        return found

    def _add_file(self, file: Path, where: str) -> None:
        try:
            place, lines = copied(file), list(logical_lines(file))
        except (_Unusable, OSError, UnicodeDecodeError) as error:
            self.problems.append(f"{where}: {getattr(error, 'strerror', None) or error}")
            return
        if place in self.paths:
            return
        self.paths.append(place)
        for number, line in lines:
            self._add_line(file, line, f"{file}:{number}")

    def _add_line(self, file: Path, line: str, where: str) -> None:
        self.variables = list(dict.fromkeys([*self.variables, *VARIABLE.findall(line)]))
        if named := FILES.match(line):
            if "://" not in named[1]:
                self._add_file(file.parent / unquoted(named[1]), where)
            return
        try:
            path = local_path(line)
            place = copied(path) if path else None
        except _Unusable as error:
            self.problems.append(f"{where}: {error}")
            return
        if place and place not in self.paths:
            self.paths.append(place)


def logical_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines without comments, joined at backslashes; each with the number of its first."""
    begun, joined = 0, ""
    for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
        begun = begun or number
        if line.endswith("\\") and not COMMENT.match(line):
            joined += line[:-1]
            continue
        if text := COMMENT.sub("", joined + line).strip():
            yield begun, text
        begun, joined = 0, ""


def local_path(line: str) -> Path | None:
    """The file or folder of this machine that the line names, if any. Raises _Unusable."""
    if EDITABLE.match(line):
        raise _Unusable(
            "an editable package is a link to its folder, which the image does not have; name the"
            " folder without -e, or a wheel"
        )
    if links := LINKS.match(line):
        return None if "://" in links[1] else Path(unquoted(links[1]))
    if line.startswith("-"):
        return None
    target = re.split(r";\s|\s--", line, maxsplit=1)[0].rstrip()
    if NAMED.match(target):
        target = target.partition("@")[2].strip()
    scheme = urlsplit(target).scheme
    if scheme == "file":
        path = unquote(urlsplit(target).path)
        raise _Unusable(f"{path} is a place on this machine; name it by a relative path")
    if scheme.startswith(("git", "hg", "svn", "bzr")) and ("+" in scheme or "://" in target):
        raise _Unusable(f"the build has no {scheme.partition('+')[0]}; name an archive or a wheel")
    if "://" in target:
        return None
    target = re.sub(r"\[[^\[\]]*\]$", "", target)
    is_path = target.startswith(".") or "/" in target or target.lower().endswith(ARCHIVES)
    return Path(target) if is_path else None


def unquoted(word: str) -> str:
    return word.strip().strip("\"'")


def copied(path: Path) -> str:
    """The path from the current directory, in which the image is built. Raises _Unusable."""
    here = Path.cwd()
    place = (here / path).resolve()
    if not place.exists():
        raise _Unusable(f"{path} is not there")
    if place == here.resolve():
        raise _Unusable(
            "the current directory is not installed into the image, but its app copied; leave the"
            " line out, or name a wheel"
        )
    if not place.is_relative_to(here.resolve()):
        raise _Unusable(str(NotInContext(path)))
    return place.relative_to(here.resolve()).as_posix()
