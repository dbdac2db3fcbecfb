"""The pages about deploying, step by step: every file is where the step before has put it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import Celery

from supervisor.app import supervise
from supervisor.cli import VERBS
from supervisor.deploy.targets import CHART
from tests.tools.deploy.layouts import settings
from tests.tools.deploy.walkthrough import PAGES, Walk, commands, headings, walk


def assignments(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def is_secret(path: Path) -> bool:
    return path.stat().st_mode & 0o777 == 0o600 and "PASSWORD\n" not in path.read_text()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return walk("systemd.md", tmp_path_factory.mktemp("machine"))


def test_systemd_finds_what_its_units_name(machine: Walk) -> None:
    units = sorted(machine.place("/etc/systemd/system").glob("*.service"))
    assert len(units) == 4
    for unit in units:
        options = settings(unit)
        named = [
            path for key in ("WorkingDirectory", "EnvironmentFile") for path in options.get(key, [])
        ]
        named = [path for path in named if not path.startswith("-")]  # may be absent
        named += [word.partition(":")[2] for word in options.get("LoadCredential", [])]
        named += [line.split()[0] for line in options["ExecStart"] if "/opt/" in line.split()[0]]
        assert named
        assert [path for path in named if not machine.place(path).exists()] == []


def test_systemd_wants_a_server_that_a_step_before_has_installed(machine: Walk) -> None:
    [line] = settings(machine.place("/etc/systemd/system/supervisor-valkey.service"))["ExecStart"]
    assert line.startswith("/usr/bin/valkey-server ")
    [packages] = [call for call in machine.calls if call[0] == "apt-get"]
    assert {"valkey-server", "python3-venv", "openssl"} <= set(packages)
    assert ["systemctl", "disable", "--now", "valkey-server"] in machine.calls


def test_systemds_server_and_its_clients_have_one_password(machine: Walk) -> None:
    secrets = machine.place("/etc/supervisor")
    assert [path.name for path in sorted(secrets.iterdir())] == ["supervisor.env", "valkey.conf"]
    assert all(map(is_secret, secrets.iterdir()))
    [password] = re.findall(r"^requirepass (\w{64})$", (secrets / "valkey.conf").read_text(), re.M)
    url = assignments(secrets / "supervisor.env")["SUPERVISOR_REDIS_URL"]
    assert url == f"redis://:{password}@127.0.0.1:6379/0"


def test_a_machine_has_one_place_of_schedule_files(machine: Walk) -> None:
    beat = settings(machine.place("/etc/systemd/system/supervisor-beat@.service"))
    [followed] = [word for word in beat["Environment"] if word.startswith("SUPERVISOR_SCHEDULES=")]
    # `supervise(app, schedules="schedules")`, which the verbs read there.
    assert beat["WorkingDirectory"] == ["/opt/supervisor"]
    assert followed == "SUPERVISOR_SCHEDULES=/opt/supervisor/schedules"
    others = machine.root.rglob("jobs.yaml")
    expected = [machine.place("/opt/supervisor/schedules/jobs.yaml")]
    assert [path for path in others if not path.is_relative_to(machine.project)] == expected


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return walk("compose.md", tmp_path_factory.mktemp("host"))


def services(host: Walk) -> dict[str, Any]:
    text = (host.project / "deploy" / "compose" / "compose.yaml").read_text()
    return yaml.safe_load(text)["services"]  # type: ignore[no-any-return]


def mounted(host: Walk) -> list[str]:
    """Paths as seen from the Compose file."""
    volumes = [path for one in services(host).values() for path in one.get("volumes", [])]
    return [path.partition(":")[0] for path in volumes if path.startswith(".")]


def test_compose_finds_what_its_file_names(host: Walk) -> None:
    folder = host.project / "deploy" / "compose"
    files = [file for service in services(host).values() for file in service.get("env_file", [])]
    named = [file for file in files if isinstance(file, str)]  # the others may be absent
    named += mounted(host)
    assert {"supervisor.env", "serve.env", "valkey.env", "../../schedules"} <= set(named)
    assert [path for path in [*named, "serve.token"] if not (folder / path).exists()] == []


def test_composes_parties_have_one_password_and_one_token(host: Walk) -> None:
    folder = host.project / "deploy" / "compose"
    secrets = [
        folder / name for name in ("supervisor.env", "valkey.env", "serve.env", "serve.token")
    ]
    assert [path.name for path in secrets if not is_secret(path)] == []
    password = assignments(folder / "valkey.env")["VALKEY_PASSWORD"]
    url = assignments(folder / "supervisor.env")["SUPERVISOR_REDIS_URL"]
    assert url == f"redis://:{password}@valkey:6379/0"
    token = assignments(folder / "serve.env")["SUPERVISOR_TOKEN"]
    assert (folder / "serve.token").read_text() == token != ""


def test_the_image_that_compose_runs_is_the_one_that_was_built(host: Walk) -> None:
    assert services(host)["beat"]["image"] == host.options_of("docker", "build")["--tag"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return walk("helm.md", tmp_path_factory.mktemp("cluster"))


def test_the_cluster_has_every_secret_that_the_chart_names(cluster: Walk) -> None:
    made = {
        (call[call.index("generic") + 1], word.split("=")[1])
        for call in cluster.calls
        if "generic" in call
        for word in call
        if word.startswith("--from-literal=")
    }
    values = cluster.project / "deploy" / "helm" / CHART / "values.yaml"
    secrets = yaml.safe_load(values.read_text())["secrets"]
    assert made == {
        (secrets["redis"], "url"),
        (secrets["redis"], "password"),
        (secrets["serve"], "token"),
    }


def test_the_image_that_the_pods_run_is_the_one_that_was_pushed(cluster: Walk) -> None:
    [image] = images(cluster)
    assert image == cluster.options_of("docker", "build")["--tag"]
    assert ["docker", "push", image] in cluster.calls


#: As a program of the machine's, or of a container's.
VERB = re.compile(r"(?:^|bin/|exec \w+ |-- )supervisor (?:-A proj )?([a-z]+)", re.M)


@pytest.mark.parametrize("page", PAGES)
def test_a_verb_that_a_step_asks_for_exists(page: str) -> None:
    found = {verb for heading in headings(page) for verb in VERB.findall(commands(page, heading))}
    assert "render" in found
    assert found <= set(VERBS)


@pytest.mark.parametrize("page", PAGES)
def test_each_page_can_be_followed_to_its_end(page: str, tmp_path: Path) -> None:
    steps = [each for each in headings(page) if each != "Several machines"]
    assert walk(page, tmp_path, *steps).calls


def test_nothing_rendered_is_left_when_the_units_are_removed(tmp_path: Path) -> None:
    units = walk("systemd.md", tmp_path, "Install", "Remove").place("/etc/systemd/system")
    assert [path.name for path in units.iterdir() if not path.name.endswith(".example")] == []


@pytest.mark.parametrize("page", ["compose.md", "helm.md"])
def test_an_upgrade_changes_the_image_and_the_way_back_restores_it(
    page: str, tmp_path: Path
) -> None:
    upgraded = walk(page, tmp_path / "up", "Install", "Upgrade")
    assert images(upgraded) == {upgraded.calls_of("docker", "build")[-1]["--tag"]}
    if page != "helm.md":  # which keeps its revisions itself
        returned = walk(page, tmp_path / "back", "Install", "Upgrade", "Roll back")
        assert images(returned) == {returned.calls_of("docker", "build")[0]["--tag"]}


def images(walked: Walk) -> set[str]:
    """Of the app, in whatever was rendered."""
    files = (walked.project / "deploy").rglob("*.yaml")
    found = re.compile(r"""image: ["']?([\w./-]*\bproj:[\d.]+)""")
    return {image for path in files for image in found.findall(path.read_text())}


URL = "redis://:secret@redis.internal:6379/0"


def brokers(monkeypatch: pytest.MonkeyPatch, named: str | None) -> str:
    monkeypatch.setenv("SUPERVISOR_REDIS_URL", URL)
    app = supervise(Celery("proj", broker=named, set_as_current=False))
    return str(app.conf.broker_url)


def test_the_address_of_redis_is_the_brokers_if_the_app_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert brokers(monkeypatch, None) == URL
    assert brokers(monkeypatch, "redis://localhost") == "redis://localhost"
    monkeypatch.setenv("CELERY_BROKER_URL", URL)
    assert brokers(monkeypatch, "redis://localhost") == URL


def test_the_page_monitors_with_nothing_but_the_package(tmp_path: Path) -> None:
    walked = walk("deploying.md", tmp_path, "Monitoring")
    folder = walked.project / "deploy" / "compose"
    ours = [path for path in mounted(walked) if "/ops/" in path]
    assert "../../ops/prometheus/rules.yml" in ours
    assert [path for path in ours if not (folder / path).exists()] == []


def test_a_further_machine_starts_nothing_that_must_run_once(tmp_path: Path) -> None:
    units = walk("systemd.md", tmp_path, "Several machines").place("/etc/systemd/system")
    expected = sorted(path.stem for path in (units / "supervisor.target.d").iterdir())
    assert expected == [
        f"supervisor-{name}.service" for name in ("beat@1", "beat@2", "worker@default")
    ]
    # To be started by hand when the first machine is lost.
    assert (units / "supervisor-serve.service").exists()
    assert (units / "supervisor-worker@serial.poll-inbox.service.d").exists()
    assert list(units.glob("*valkey*")) == []
    assert "@HOST:" in (units / "supervisor.env.example").read_text()
