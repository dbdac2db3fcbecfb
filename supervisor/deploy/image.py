"""The app's name -> a Dockerfile: its packages and its code, for every process of a deployment.

Paths are as seen from the directory in which the image is built.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from supervisor.deploy import images
from supervisor.deploy.directory import Files, Templates
from supervisor.deploy.plan import PORT
from supervisor.deploy.requirements import Requirements
from supervisor.errors import SupervisorError


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
    templates = Templates("image", options=options, images=images, port=PORT)
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
