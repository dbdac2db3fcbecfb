"""What shells complete, by click's protocol for each of them, and in a real Bash."""

from __future__ import annotations

import os
import pty
import select
import socket
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import supervisor.cli.completion  # noqa: F401  (as it is loaded where a shell asks)
from supervisor.cli import main
from supervisor.ledger.ledger import Ledger
from tests.ledger.jobs import admitted, job, run_id
from tests.waiting import patience, wait_until

NOWHERE = "redis://127.0.0.1:1/0"
BREAKS = " \t\n\"'@><=;|&(:"


def asked(shell: str, url: str, line: str) -> str:
    """All that the shell is answered; the cursor is at the end of the line."""
    words = line.split(" ")
    env = {
        "_SUPERVISOR_COMPLETE": f"{shell}_complete",
        "SUPERVISOR_REDIS_URL": url,
        "COMP_WORDS": line,
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words) - 1),
        "COMP_LINE": line,
        "COMP_WORDBREAKS": BREAKS,
    }
    answered = CliRunner().invoke(main, [], env=env, prog_name="supervisor")
    assert answered.exit_code == 0, answered.output
    return answered.output


#: What a shell is told of a name, and of the last part of it where it takes it for several words.
TOLD = {"bash": "plain,{}\n", "zsh": "plain\n{}\n_\n", "fish": "plain,{}\n"}


def told(shell: str, *names: str) -> str:
    return "".join(TOLD[shell].format(name) for name in names) or "\n"


@pytest.mark.parametrize("shell", TOLD)
def test_names_and_runs_complete(shell: str, ledger: Ledger, redis_url: str) -> None:
    spec = admitted(ledger, 0)
    job(ledger, "nights")
    job(ledger, "other")
    run = run_id(spec, 0)
    asked_of = [asked(shell, redis_url, f"supervisor {line}") for line in ("pause nig", "why n")]
    assert asked_of == [told(shell, "nightly", "nights")] * 2
    assert asked(shell, redis_url, "supervisor resume nightly o") == told(shell, "other")
    assert asked(shell, redis_url, "supervisor show n") == told(shell, run)
    for verb in ("show", "cancel", "why"):
        begun = run[: run.index(":") + 2]
        rest = run.partition(":")[2] if shell == "bash" else run
        assert asked(shell, redis_url, f"supervisor {verb} {begun}") == told(shell, rest)
    queue = asked(shell, redis_url, "supervisor drain cel")
    assert queue == told(shell, "celery")


def test_a_ledger_that_does_not_answer_completes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        for url in (NOWHERE, hangs, "nonsense://"):
            began = time.monotonic()
            assert asked("zsh", url, "supervisor pause n") == told("zsh")
            assert time.monotonic() - began < patience(2)


def test_an_app_is_asked_for_its_ledger_and_its_noise_is_kept_back(
    ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(ledger, "nightly")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "noisy_of_completion.py").write_text(
        "from celery import Celery\nfrom supervisor.app import supervise\nprint('noise')\n"
        f"app = supervise(Celery('noisy', broker={redis_url!r}, set_as_current=False))\n"
    )
    line = "supervisor -A noisy_of_completion:app pause n"
    assert asked("zsh", "", line) == told("zsh", "nightly")
    assert asked("zsh", redis_url, line.replace("noisy", "absent")) == told("zsh")


def test_a_real_bash_completes_the_id_of_a_run(ledger: Ledger, redis_url: str) -> None:
    spec = admitted(ledger, 0)
    run = run_id(spec, 0)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": programs, "SUPERVISOR_REDIS_URL": redis_url, "TERM": "dumb", "COLUMNS": "200"}
    child, screen = pty.fork()
    if not child:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
    shown = ""

    def shows(text: str) -> bool:
        nonlocal shown
        if select.select([screen], [], [], 0.1)[0]:
            shown += os.read(screen, 65536).decode(errors="replace")
        return text in shown

    try:
        os.write(screen, b'eval "$(_SUPERVISOR_COMPLETE=bash_source supervisor)"; echo re""ady\n')
        wait_until(lambda: shows("ready"))
        os.write(screen, f"echo supervisor; supervisor show {run[:10]}\t| head -1\n".encode())
        wait_until(lambda: shows(f"run               {run}"))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(screen)
