"""A deployment on hosts of their own: Valkey, two beats, three workers and `serve`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from supervisor.deploy.embedded import server_binary
from supervisor.ledger.ledger import Ledger
from supervisor.settings import Settings
from tests.acceptance.nodes import answers
from tests.acceptance.project import TOKEN, Project, Sign
from tests.hosts.network import Host, Network, network
from tests.waiting import wait_until

BEATS = ("beat-1", "beat-2")
WORKERS = ("worker-1", "worker-2", "worker-3")

#: Prints what is at an address.
FETCH = """\
import sys, urllib.request as http
address, token = sys.argv[1:]
request = http.Request(address, headers={"Authorization": f"Bearer {token}"})
print(http.urlopen(request).read().decode())
"""


@dataclass
class Fleet:
    network: Network
    hosts: dict[str, Host]

    projects: dict[str, Project]
    """Each host's own copy of the team's project, by the host's name."""

    ledger: Ledger

    def host_of(self, process: str) -> Host:
        """Of a worker as attempts name it, or a beat as the ledger names its leader."""
        name = process.rpartition("@")[2].partition(":")[0].partition("/")[0]
        return self.hosts[name]

    def leader(self) -> Host | None:
        leading = self.ledger.beat().leader
        return self.host_of(leading) if leading else None

    def signs(self, job: str) -> list[Sign]:
        """Of all hosts, which have one clock, in the order in which they were given."""
        signs = [sign for project in self.projects.values() for sign in project.witness(job)]
        return sorted(signs, key=lambda sign: sign.at)

    def metrics(self) -> str:
        """What a Prometheus on a host of its own would be given."""
        url = f"http://{self.hosts['serve'].address}:9809/metrics"
        fetch = [*self.hosts["monitor"].within, sys.executable, "-c", FETCH, url, TOKEN]
        return subprocess.run(fetch, capture_output=True, text=True, check=False).stdout


@contextmanager
def fleet(directory: Path, schedule: str) -> Iterator[Fleet]:
    """All of it at work, with the jobs loaded."""
    with network() as net, ExitStack() as stack:
        names = ("valkey", *BEATS, *WORKERS, "serve", "monitor")
        hosts = {name: net.host(name, number) for number, name in enumerate(names, 1)}
        ledger = stack.enter_context(valkey(hosts["valkey"], directory))
        url = f"redis://{hosts['valkey'].address}/0"
        projects = {}
        for name in (*BEATS, *WORKERS, "serve"):
            projects[name] = Project(directory / name, url, within=hosts[name].within)
            projects[name].schedule(schedule)
            stack.callback(projects[name].stop)
        for name in BEATS:
            projects[name].beat()
        for name in WORKERS:
            projects[name].hire()
        projects["serve"].serve("--host", hosts["serve"].address)
        deployed = Fleet(net, hosts, projects, ledger)
        wait_until(lambda: all(is_ready(projects[name]) for name in WORKERS), 40)
        wait_until(ledger.scheduled, 20)
        wait_until(deployed.metrics, 20)
        yield deployed


@contextmanager
def valkey(host: Host, directory: Path) -> Iterator[Ledger]:
    """Also on a socket in the file system, by which the test sees it whatever becomes of links."""
    socket = directory / "valkey.sock"
    options = f"--bind {host.address} --protected-mode no --dir {directory} --unixsocket {socket}"
    command = [*host.within, server_binary(), *options.split(), "--logfile", "valkey.log"]
    with subprocess.Popen(command) as process:
        try:
            ledger = Ledger.open(Settings(redis_url=f"unix://{socket}"))
            wait_until(lambda: answers(ledger.client))
            # It has nothing to remember: no lease of another life has to be waited for.
            ledger.acknowledge_server()
            yield ledger
            ledger.client.close()
        finally:
            process.kill()


def is_ready(project: Project) -> bool:
    return project.is_ready(project.processes[0])
