"""What a deployment would run, read from the committed files: commands, environments, places.

Nothing here starts a container or asks systemd: a layout is a folder of the test's in which the
files' paths are found again, ports that are free, and the programs of this environment.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from supervisor.deploy.embedded import server_binary
from tests.tools.deploy.jobs import ROOT

PROGRAMS = Path(sys.executable).parent

PASSWORD = "of-the-test"


@dataclass(frozen=True)
class Member:
    name: str
    command: list[str]
    environment: Mapping[str, str]
    directory: Path

    grace: int
    """Seconds from SIGTERM to SIGKILL."""


@dataclass(frozen=True)
class Layout:
    """A folder instead of /, and ports instead of 6379 and 9809."""

    root: Path
    redis_port: int
    http_port: int

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def localized(self, text: str) -> str:
        """The text with the folder's paths and the ports that are free."""
        for path in ("/etc/supervisor", "/var/lib/supervisor", "/opt/supervisor", "/srv/app"):
            text = re.sub(rf"(?<![\w.]){path}", str(self.place(path)), text)
        text = re.sub(r"\b6379\b", str(self.redis_port), text)
        return re.sub(r"\b9809\b", str(self.http_port), text)

    def environment(self, *parts: Mapping[str, str]) -> dict[str, str]:
        found = {"PATH": f"{self.place('/bin')}:{PROGRAMS}:/usr/bin:/bin"}
        for part in parts:
            found |= {name: self.localized(value) for name, value in part.items()}
        return found

    def furnish(self) -> None:
        """What an administrator would have put there."""
        for path in (
            "/bin",
            "/etc/supervisor/schedules",
            "/var/lib/supervisor",
            "/srv/app",
            "/data",
            "/opt/supervisor/.venv",
        ):
            self.place(path).mkdir(parents=True, exist_ok=True)
        self.place("/var/lib/supervisor-valkey").mkdir()
        self.place("/opt/supervisor/.venv/bin").symlink_to(PROGRAMS)
        self.place("/bin/valkey-server").symlink_to(server_binary())
        # Mounted into containers; on a machine, beside the app.
        for folder in ("/etc/supervisor", "/opt/supervisor"):
            shutil.copytree(
                ROOT / "schedules", self.place(folder) / "schedules", dirs_exist_ok=True
            )
        # What the example `documents` reads; the Dockerfile copies it.
        for folder in ("/srv/app", "/opt/supervisor"):
            self.place(folder).joinpath("docs").symlink_to(ROOT / "docs")


def env_file(path: Path) -> dict[str, str]:
    """A committed example, with the password filled in."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    pairs = (line.split("=", 1) for line in lines)
    return {name: value.replace("PASSWORD", PASSWORD) for name, value in pairs}


def env_files(service: Mapping[str, Any]) -> list[str]:
    """Of a Compose service, also those that may be absent."""
    named = service.get("env_file", [])
    return [file if isinstance(file, str) else file["path"] for file in named]


def of_compose(layout: Layout) -> Iterator[Member]:
    folder = ROOT / "deploy" / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        if "profiles" in service:
            continue
        files = [env_file(folder / f"{file}.example") for file in env_files(service)]
        environment = layout.environment(*files, service.get("environment", {}))
        # Containers find Valkey by its service's name, on an address of its own.
        for variable, value in environment.items():
            environment[variable] = value.replace("@valkey:", "@127.0.0.1:")
        command = [layout.localized(word.replace("$$", "$")) for word in service["command"]]
        if name == "valkey":
            elsewhere = f"valkey-server - --port {layout.redis_port} --bind 127.0.0.1"
            command[-1] = command[-1].replace("valkey-server -", elsewhere, 1)
            command[-1] = command[-1].replace("dir /data", f"dir {layout.place('/data')}")
        grace = int(service["stop_grace_period"].removesuffix("s"))
        for number in range(service.get("deploy", {}).get("replicas", 1)):
            directory = layout.place("/srv/app")
            yield Member(f"{name}-{number}", command, environment, directory, grace)


def of_systemd(layout: Layout) -> Iterator[Member]:
    folder = ROOT / "deploy" / "systemd"
    secret = layout.place("/etc/supervisor")
    (secret / "supervisor.env").write_text((folder / "supervisor.env.example").read_text())
    example = (folder / "valkey.conf.example").read_text()
    (secret / "valkey.conf").write_text(example.replace("PASSWORD", PASSWORD))
    for file in sorted((folder / "supervisor.target.d").iterdir()):
        for wanted in settings(file)["Wants"]:
            yield service_of(layout, folder, wanted)


def service_of(layout: Layout, folder: Path, unit: str) -> Member:
    template, at, rest = unit.partition("@")
    instance = rest.removesuffix(".service")
    options = settings(folder / (f"{template}@.service" if at else unit))
    for drop_in in sorted(folder.glob(f"{unit}.d/*.conf")):
        options |= settings(drop_in)
    words = options.get("Environment", [])
    pairs = [shlex.split(word)[0].split("=", 1) for word in words]
    paths = [path for path in options.get("EnvironmentFile", []) if not path.startswith("-")]
    files = [env_file(layout.place(path)) for path in paths]
    credentials = str(layout.place("/etc/supervisor"))
    line = options["ExecStart"][-1].replace("%i", instance).replace("%%", "%")
    line = line.replace("${CREDENTIALS_DIRECTORY}", credentials)
    line = line.replace("/usr/bin/valkey-server", server_binary())
    directory = options.get("WorkingDirectory", ["/var/lib/supervisor-valkey"])[-1]
    return Member(
        name=unit,
        command=shlex.split(layout.localized(line)),
        environment=layout.environment(dict(pairs), *files),
        directory=layout.place(directory),
        grace=int(options["TimeoutStopSec"][-1]),
    )


def settings(file: Path) -> dict[str, list[str]]:
    """All values of each key of a unit file, in order; an empty one forgets those before it."""
    options: dict[str, list[str]] = {}
    for line in file.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", "[")):
            options[key] = [*options.get(key, []), value] if value else []
    return options
