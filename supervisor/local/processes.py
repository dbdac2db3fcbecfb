"""Child processes that do not outlive us, however we end."""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """To be run in a child before it becomes its program: the kernel ends it when we are gone.

    Linux only; elsewhere a child of a supervisor that was killed has to be ended by hand.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
