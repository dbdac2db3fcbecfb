"""Ports for what the tests start: none is given twice soon, nor to what others start meanwhile."""

from __future__ import annotations

import os
import random
from itertools import count

from supervisor.deploy.embedded import port_is_free

#: Below those of embedded servers, which are below those of outgoing connections.
FIRST = 10_000

#: As many for each process of a run of the tests, of as many processes.
PORTS, PROCESSES = 600, 16

_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
_numbers = count(random.randrange(PORTS))


def free_port() -> int:
    first = FIRST + PORTS * _process
    ports = (first + next(_numbers) % PORTS for _ in range(PORTS))
    return next(port for port in ports if port_is_free(port))
