"""The commands of the pages about deploying, done in a folder instead of / and with stand-ins.

What would change a machine or talk to another one (packages, users, systemd, engines, clusters) is
only written down; everything else is done: rendering, copying, making secrets.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.tools.deploy.jobs import ROOT

HOW_TO = ROOT / "docs" / "how-to"

#: In the order in which docs/how-to/deploying.md names them.
PAGES = ("deploying.md", "systemd.md", "compose.md", "helm.md")

WHEEL = "celery_beat_supervisor-0.1.0-py3-none-any.whl"

PROGRAMS = Path(sys.executable).parent

#: Only written down.
FOREIGN = ("apt-get", "docker", "helm", "kubectl", "pip", "sudo", "systemctl", "useradd")

PLACES = ("/etc/supervisor", "/etc/systemd", "/opt/supervisor", "/var/lib/supervisor")

APP = """\
from celery import Celery
from supervisor.app import supervise

app = Celery("proj")
supervise(app, schedules="schedules")
"""

JOBS = """\
jobs:
  poll-inbox: {task: mail.poll, every: 90s, serial: true, time_limit: 1m}
  nightly: {task: reports.nightly, cron: "30 2 * * *", ping_url: "https://hc-ping.com/${CHECK}"}
"""

NOTED = """\
#!/bin/sh
printf '%s\\n' "$(basename "$0") $*" >> {calls}
"""

#: Renders, and does not ask a Redis that is not there.
SUPERVISOR = """\
#!/bin/sh
case " $* " in
  *" render "*) exec {programs}/supervisor "$@" ;;
  *) printf '%s\\n' "supervisor $*" >> {calls} ;;
esac
"""

#: An environment as `python3 -m venv` and pip would make it.
PYTHON = """\
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 1
mkdir -p "$3/bin"
ln -s {programs}/celery {stands}/pip {stands}/supervisor "$3/bin/"
"""


@dataclass(frozen=True)
class Walk:
    root: Path
    """Instead of /."""

    project: Path
    """Where a team's files lie, and the commands begin."""

    @property
    def calls(self) -> list[list[str]]:
        return [shlex.split(line) for line in (self.root / "calls").read_text().splitlines()]

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def calls_of(self, *command: str) -> list[dict[str, str]]:
        """Of each call that begins so: --name and its value."""
        calls = [call for call in self.calls if call[: len(command)] == list(command)]
        return [
            {name: value for name, value in pairwise(call) if name.startswith("--")}
            for call in calls
        ]

    def options_of(self, *command: str) -> dict[str, str]:
        """Of the one call that begins so."""
        [options] = self.calls_of(*command)
        return options


def headings(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", (HOW_TO / page).read_text(), re.M)


def commands(page: str, heading: str) -> str:
    """All blocks of commands below a heading, up to the next one."""
    sections = re.split(r"^#+ ", (HOW_TO / page).read_text(), flags=re.M)
    [text] = [section for section in sections if section.startswith(f"{heading}\n")]
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.S | re.M)
    return "\n".join(map(textwrap.dedent, blocks))


def walk(page: str, root: Path, *steps: str, schedules: str = JOBS) -> Walk:
    """Carries out sections of a page, each from the same folder. Raises CalledProcessError."""
    done = Walk(root, root / "home" / "project")
    stands = root / "bin"
    furnish(done, stands, schedules)
    for heading in steps or ("Install",):
        script = commands(page, heading)
        for path in PLACES:
            script = re.sub(rf"(?<![\w.]){path}\b", str(done.place(path)), script)
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=done.project,
            env={**os.environ, "PATH": f"{stands}:/usr/bin:/bin"},
            capture_output=True,
            check=True,
        )
    return done


def furnish(walked: Walk, stands: Path, schedules: str) -> None:
    (walked.project / "proj").mkdir(parents=True)
    (walked.project / "proj" / "__init__.py").write_text(APP)
    (walked.project / "schedules").mkdir()
    (walked.project / "schedules" / "jobs.yaml").write_text(schedules)
    (walked.project / "requirements.txt").write_text(f"./{WHEEL}\n")
    walked.place("/etc/systemd/system").mkdir(parents=True)
    (walked.root / "calls").touch()
    stands.mkdir()
    values = {"calls": walked.root / "calls", "programs": PROGRAMS, "stands": stands}
    scripts = {**dict.fromkeys(FOREIGN, NOTED), "supervisor": SUPERVISOR, "python3": PYTHON}
    programs = walked.project / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "supervisor").symlink_to(stands / "supervisor")
    for name, script in scripts.items():
        (stands / name).write_text(script.format(**values))
        (stands / name).chmod(0o755)
