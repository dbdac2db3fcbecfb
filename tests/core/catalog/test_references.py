from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from supervisor.catalog.schedule_files import load
from supervisor.cli import main
from supervisor.errors import SecretMissing
from supervisor.features.pings.step import address_of
from supervisor.job.changes import edits
from supervisor.job.secrets import LARGEST_SECRET, masked, resolved
from supervisor.job.spec import JobSpec
from tests.core.catalog.problems import problems_of


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    directory = tmp_path / "secrets"
    directory.mkdir()
    (directory / "key").write_text("from a file\n")
    (directory / "large").write_bytes(b"x" * (LARGEST_SECRET + 1))
    (directory / "binary").write_bytes(b"\xff")
    (tmp_path / "outside").write_text("not a secret of ours")
    (directory / "link").symlink_to(tmp_path / "outside")
    return {"NAME": "value", "NESTED": "${NAME}", "SUPERVISOR_SECRETS_DIR": str(directory)}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${NAME}", "value"),
        ("a${NAME}b${NAME}", "avaluebvalue"),
        ("$${NAME}", "${NAME}"),
        ("$$${NAME}", "$${NAME}"),
        ("$NAME {NAME} $", "$NAME {NAME} $"),
        ("${NESTED}", "${NAME}"),
        ({"deep": [1, None, {"${NAME}": "${NAME}"}]}, {"deep": [1, None, {"${NAME}": "value"}]}),
    ],
)
def test_references_become_what_they_stand_for_once(
    environ: Mapping[str, str], written: Any, meant: Any
) -> None:
    assert resolved(written, environ) == meant


@pytest.mark.parametrize("path", ["{}/key", "{}/../secrets/key", "{}/./key"])
def test_a_file_of_a_secret_is_read_without_its_last_line_end(
    environ: Mapping[str, str], path: str
) -> None:
    path = path.format(environ["SUPERVISOR_SECRETS_DIR"])
    assert resolved(f"${{file:{path}}}!", environ) == "from a file!"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "is not in"),
        ("{}/../outside", "is not in"),
        ("{}/link", "is not in"),
        ("{}", "not a regular file"),
        ("{}/nothing", "No such file"),
        ("{}/key/more", "Not a directory"),
        ("{}/large", "larger than 64 KiB"),
        ("{}/binary", "UnicodeDecodeError"),
        ("/dev/zero", "is not in"),
        ("/" + "x" * 5000, "name too long"),
    ],
)
def test_no_other_file_is_read(environ: Mapping[str, str], path: str, why: str) -> None:
    path = path.format(environ["SUPERVISOR_SECRETS_DIR"])
    with pytest.raises(SecretMissing, match=why):
        resolved(f"${{file:{path}}}", environ)


@pytest.mark.parametrize("written", ["${}", "${file:key}", "${a-b}", "${NAME", "${env:NAME}"])
def test_what_only_looks_like_a_reference_is_a_problem_with_its_place(
    tmp_path: Path, written: str
) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        f"jobs:\n  j:\n    task: t\n    every: 1h\n    kwargs:\n      a: b\n      c: '{written}'\n"
    )
    [problem] = problems_of(file)
    assert (problem.line, problem.job) == (7, "j")
    assert "is not a reference to a secret" in problem.what


def test_what_is_not_set_is_a_problem_with_its_place_where_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text("""jobs:
  one: {task: t, every: 1h, args: [1, "${A}"]}
  two:
    every: 1h
    ping_url: https://hc-ping.com/${B}
    steps:
    - task: t
      priority: 1
      kwargs:
        x: ${C}
""")
    assert len(load(file).specs) == 2
    found = problems_of(file, environ={"B": "set"})
    assert [(p.line, p.what.rpartition(": ${")[2]) for p in found] == [
        (2, "A}: the variable is not set"),
        (10, "C}: the variable is not set"),
    ]


def test_check_looks_for_secrets_only_where_it_is_asked_to(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text('jobs: {j: {task: t, every: 1h, args: ["${A_SECRET}"]}}\n')

    def check(*words: str, **variables: str) -> int:
        return CliRunner().invoke(main, ["check", str(file), *words], env=variables).exit_code

    assert check() == 0
    assert check("--secrets") == 1
    assert check("--secrets", A_SECRET="x") == 0


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/run/secrets/token", 0),
        ("/run/secrets/../secrets/token", 0),
        ("/run/secrets/../token", 1),
        ("/etc/passwd", 1),
        ("/other/token", 1),
    ],
)
def test_a_file_outside_of_the_directory_of_secrets_is_a_problem(
    tmp_path: Path, path: str, code: int
) -> None:
    """Whether the file is there or not: it is in the environment of a worker that it matters."""
    file = tmp_path / "jobs.yaml"
    file.write_text(f"jobs:\n  j:\n    task: t\n    args: ['${{file:{path}}}']\n    every: 1h\n")
    checked = CliRunner().invoke(main, ["check", str(file)])
    assert checked.exit_code == code, checked.output
    if code:
        assert checked.output.startswith(
            f"{file}:4: job 'j': 'args': ${{file:{path}}}: it is not in"
        )
    variables = {"SUPERVISOR_SECRETS_DIR": "/other"}
    elsewhere = CliRunner().invoke(main, ["check", str(file)], env=variables)
    assert elsewhere.exit_code == (0 if path.startswith("/other") else 1)
    assert load(file).specs


def test_params_which_are_handed_on_have_no_references(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        'jobs: {j: {every: 1h, params: {a: "${A}"}, steps: [{task: t, priority: 1}]}}\n'
    )
    [problem] = problems_of(file)
    assert "handed on as it is" in str(problem)


@pytest.mark.parametrize("value", ["file:///etc/passwd", "ftp://x/", "nonsense", ""])
def test_an_address_that_is_none_after_all_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("PING", value)
    with pytest.raises(SecretMissing, match="no http or https address") as missing:
        address_of("${PING}")
    assert not value or value not in str(missing.value)


def test_a_plan_shows_no_value_that_is_masked() -> None:
    steps = [{"task": "t", "priority": 1, "kwargs": {"password": "s1"}}]
    after = [{"task": "t", "priority": 1, "kwargs": {"password": "s2", "user": "ann"}}]
    whole = {"name": "j", "every": "1h", "mask": ["password"]}
    told = edits(
        JobSpec(**whole, steps=steps, params={"password": "s3"}),
        JobSpec(**whole, steps=[*after, {**after[0], "name": "u"}], params={"password": "s4"}),
    )
    assert "ann" in str(told)
    assert not any(secret in str(told) for secret in ("s1", "s2", "s3", "s4"))
    true = {"name": "j", "every": "1h", "task": "t", "mask": True}
    [edit] = edits(JobSpec(**true, args=["s1"]), JobSpec(**true, args=["s2"]))
    assert (edit.old, edit.new) == ("***", "***")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("${SLACK_URL}", "${SLACK_URL}"),
        ("https://user:geheim@hooks.test:8443/geheim?key=geheim", "https://hooks.test/***"),
        ("slack://geheim/b/c", "slack://***"),
        ("mailtos://ann:geheim@mail.test?to=ops@test", "mailtos://***"),
        ("${HOST}/geheim", "***"),
        (
            {"url": "https://h/geheim", "secret": "geheim"},
            {"url": "https://h/***", "secret": "***"},
        ),
        ({"url": "${A}", "secret": "${B}"}, {"url": "${A}", "secret": "${B}"}),
    ],
)
def test_a_plan_shows_no_address_of_a_notice(written: Any, shown: Any) -> None:
    base = {"name": "j", "task": "t", "every": "1h"}
    [edit] = edits(JobSpec(**base), JobSpec(**base, notify=[written]))
    assert (edit.old, edit.new) == ([], [shown])
    assert "geheim" not in repr(JobSpec(**base, notify=[written]))


def test_a_mask_hides_names_at_any_depth_or_everything() -> None:
    value = {"a": 1, "b": [{"a": {"c": 2}}, 3]}
    assert masked(["a"], value) == {"a": "***", "b": [{"a": "***"}, 3]}
    assert masked(True, value) == "***"
    assert masked(False, value) == masked(None, value) == value


@pytest.mark.parametrize("mask", [True, ["password"]])
def test_the_key_of_a_lock_does_not_show_what_is_masked(mask: Any) -> None:
    for name in ("password", "opts", "job", "0", "arguments"):
        spec = JobSpec(name="j", task="t", every="1h", key=f"x:{{{name}}}", mask=mask)
        locks = {
            spec.lock_for([each], {**each, "opts": [each], "job": each})
            for each in ({"password": "geheim"}, {"password": "other"})
        }
        assert len(locks) == 2
        assert "geheim" not in "".join(locks)
    spec = JobSpec(name="j", task="t", every="1h", key="{job}:{0}:{a}", mask=["password"])
    assert spec.lock_for(["x"], {"a": (1, 2), "password": "geheim"}) == "j:x:[1, 2]"
