"""Several hosts on one machine: a network namespace each, with its own address and name.

Nothing here has a name outside: a namespace is held by a process that the kernel ends with the
test, and goes with it, links included. All links meet in a bridge, the switch, in a namespace of
its own, so that this machine's own network is never touched.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from tests.programs import needed
from tests.waiting import scaled

#: Ends what is started with it when the process that started it ends.
MORTAL = ("setpriv", "--pdeathsig", "KILL", "--")

#: What a network is made of; to be tried where it may be refused.
PROBE = "ip link add left type veth peer name right && ip link add middle type bridge"


@dataclass(frozen=True)
class Host:
    """`within`: the words that start a command there."""

    name: str
    address: str
    pid: int

    @property
    def within(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.pid), "--net", "--uts", *MORTAL)

    def run(self, command: str) -> None:
        """Raises CalledProcessError."""
        subprocess.run([*self.within, *command.split()], check=True, timeout=scaled(20))


@dataclass
class Network:
    """A switch and what is plugged in; the port of a host has the host's name."""

    holders: ExitStack
    switch: Host = field(init=False)

    def __post_init__(self) -> None:
        self.switch = self._namespace("switch", "")
        self.switch.run("ip link add bridge type bridge")
        self.switch.run("ip link set bridge up")

    def host(self, name: str, number: int) -> Host:
        """A host with the address 10.77.0.`number`."""
        host = self._namespace(name, f"10.77.0.{number}")
        self.switch.run(f"ip link add {name} type veth peer name uplink netns {host.pid}")
        self.switch.run(f"ip link set {name} master bridge up")
        host.run("ip link set lo up")
        host.run(f"ip address add {host.address}/24 dev uplink")
        host.run("ip link set uplink up")
        return host

    @contextmanager
    def cut(self, host: Host) -> Iterator[None]:
        """The cable is out: no packet arrives, and no connection is refused or ended."""
        self.switch.run(f"ip link set {host.name} down")
        try:
            yield
        finally:
            self.switch.run(f"ip link set {host.name} up")

    @contextmanager
    def narrow(self, host: Host, bits_per_second: int) -> Iterator[None]:
        """Both ways; what does not fit through waits for up to 30 seconds."""
        shaping = f"root tbf rate {bits_per_second}bit burst 2kb latency 30s"
        self.switch.run(f"tc qdisc add dev {host.name} {shaping}")
        host.run(f"tc qdisc add dev uplink {shaping}")
        try:
            yield
        finally:
            host.run("tc qdisc del dev uplink root")
            self.switch.run(f"tc qdisc del dev {host.name} root")

    def _namespace(self, name: str, address: str) -> Host:
        naming = f"hostname {name} && echo made && exec sleep infinity"
        holder = self.holders.enter_context(
            subprocess.Popen(
                [*MORTAL, "unshare", "--net", "--uts", "sh", "-c", naming],
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.holders.callback(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "made\n"
        return Host(name, address, holder.pid)


@contextmanager
def network() -> Iterator[Network]:
    """Skips the test where namespaces cannot be made, and says why."""
    for program in ("ip", "tc"):
        needed(program)
    probe = ["unshare", "--net", "--uts", "sh", "-c", PROBE]
    probed = subprocess.run(probe, capture_output=True, text=True, check=False)
    if probed.returncode != 0:
        pytest.skip(f"network namespaces cannot be made here: {probed.stderr.strip()}")
    with ExitStack() as holders:
        yield Network(holders)
