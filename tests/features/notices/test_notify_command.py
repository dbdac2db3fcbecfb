from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli import main
from supervisor.features.notices import services
from tests.listener import listening

JOBS = """\
defaults: {{notify: ["${{HOOK}}", {{url: "{0}/pager-geheim", events: [lost]}}]}}
jobs:
  a: {{task: t, every: 1m}}
  b: {{task: t, every: 1m}}
  c: {{task: t, every: 1m, notify: ["{0}/own-geheim"]}}
  none: {{task: t, every: 1m, notify: []}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schedules").mkdir()


def supervisor(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(main, words, env=environ)


def test_a_test_goes_once_to_each_address_of_the_files_and_the_setting() -> None:
    with listening() as listener:
        Path("schedules/jobs.yaml").write_text(JOBS.format(listener.url))
        service = f"{listener.url}/service-geheim"
        environ = {"HOOK": f"{listener.url}/hook-geheim", "SUPERVISOR_NOTIFY": service}
        done = supervisor("notify", "test", **environ)
        assert (done.exit_code, done.stderr) == (0, "")
        paths = [f"/{name}-geheim" for name in ("hook", "pager", "own", "service")]
        assert listener.paths == paths
        body = json.loads(listener.heard[0][1])
        assert (body["type"], body["data"]["title"]) == ("test", "A test of notices")
    shown = [line.split() for line in done.stdout.splitlines()[1:]]
    hidden = "http://127.0.0.1/***"
    assert [line[:2] for line in shown] == [["${HOOK}", "accepted"], *[[hidden, "accepted"]] * 3]
    assert [line[2:] for line in shown] == [["a,", "b"], ["a,", "b"], ["c"], ["SUPERVISOR_NOTIFY"]]


def test_a_refused_test_notice_is_named_with_its_reason_and_exits_1() -> None:
    with listening() as listener:
        Path("schedules/jobs.yaml").write_text(JOBS.format(listener.url))
        listener.status = 404
        done = supervisor("notify", "test", "a", "--json")
        assert listener.paths == ["/pager-geheim"]
    assert done.exit_code == 1
    assert "geheim" not in done.output
    assert json.loads(done.stdout)["results"] == [
        {
            "name": "${HOOK}",
            "state": "unavailable",
            "why": "${HOOK}: the variable is not set",
            "of": ["a"],
        },
        {"name": "http://127.0.0.1/***", "state": "refused", "why": "status 404", "of": ["a"]},
    ]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 1, "no job of the schedule files has 'notify', and SUPERVISOR_NOTIFY is not set"),
        (("none",), 1, "none has no 'notify'"),
    ],
)
def test_nothing_to_send_to_is_no_success(words: tuple[str, ...], code: int, says: str) -> None:
    Path("schedules/jobs.yaml").write_text("jobs: {none: {task: t, every: 1m}}\n")
    done = supervisor("notify", "test", *words)
    assert done.exit_code == code
    assert says in done.stderr
    assert "geheim" not in done.output


def test_check_says_what_is_to_be_installed_and_finds_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "find_spec", lambda name: None)
    file = Path("schedules/jobs.yaml")
    file.write_text('jobs: {j: {task: t, every: 1m, notify: ["mailtos://a:geheim@h"]}}\n')
    done = supervisor("check")
    assert (done.exit_code, done.stderr) == (0, f"warning: {services.MISSING}\n")
    file.write_text('jobs: {j: {task: t, every: 1m, notify: ["https://h/geheim"]}}\n')
    assert supervisor("check").stderr == ""
