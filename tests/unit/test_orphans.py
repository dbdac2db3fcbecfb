"""A child of a worker that was killed while it forked it does not live on."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKS = """
import os, sys, time
from celery import signals
from supervisor.worker.process import end_orphans

end_orphans()
main, is_orphan = os.getpid(), sys.argv[1] == "orphan"
child = os.fork()
if child and is_orphan:
    os._exit(0)
elif child:
    os.waitpid(child, 0)
else:
    while is_orphan and os.getppid() == main:
        time.sleep(0.01)
    signals.worker_process_init.send(sender=None)
    print("works", flush=True)
"""


@pytest.mark.parametrize(("whose", "said"), [("orphan", b""), ("child", b"works\n")])
def test_only_who_has_its_parent_works(whose: str, said: bytes) -> None:
    # Whoever lives has the pipe: its end is that of both.
    done = subprocess.run([sys.executable, "-c", FORKS, whose], stdout=subprocess.PIPE, check=True)
    assert done.stdout == said
