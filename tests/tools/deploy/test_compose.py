"""The Compose file: against its published schema, and what one more job adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.deploy import targets
from supervisor.deploy.directory import InTheWay, write, write_secrets
from supervisor.job.spec import JobSpec
from supervisor.web.access_file import AccessFile
from tests.tools.deploy import published
from tests.tools.deploy.jobs import ROOT, examples, job, plan_of
from tests.tools.deploy.layouts import env_files

COMMITTED = ROOT / "deploy" / "compose"


def rendered(*jobs: JobSpec, **options: object) -> dict[str, Any]:
    files = targets.render_compose(plan_of(*jobs), schedules="../../schedules", **options)  # type: ignore[arg-type]
    text = files["compose.yaml"]
    return yaml.safe_load(text)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return rendered(*examples())["services"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("options", [{}, {"valkey_image": None}, {"monitoring": "../ops"}], ids=str)
def test_the_file_is_what_the_specification_allows(options: dict[str, Any]) -> None:
    assert published.faults(published.compose(), rendered(*examples(), **options)) == []


def test_the_schema_finds_a_mistake() -> None:
    document = rendered()
    document["services"]["beat"]["stop_grace"] = "30s"
    assert "stop_grace" in str(published.faults(published.compose(), document))


def test_one_more_serial_job_adds_exactly_its_worker() -> None:
    before = rendered(*examples())
    after = rendered(*examples(), job("mail", serial=True, time_limit="2m"))
    added = after["services"].pop("worker-serial.mail")
    assert after == before
    assert "-Q serial.mail -c 1 --prefetch-multiplier 1" in " ".join(added["command"])
    assert added["stop_grace_period"] == "150s"


def test_serve_is_given_its_token_and_no_secret_of_jobs(services: dict[str, Any]) -> None:
    given = {name: set(env_files(service)) for name, service in services.items()}
    assert given.pop("serve") == {"supervisor.env", "serve.env"}
    assert given.pop("valkey") == {"valkey.env"}
    jobs = {name: files for name, files in given.items() if "profiles" not in services[name]}
    assert {frozenset(files) for files in jobs.values()} == {
        frozenset({"supervisor.env", "jobs.env"})
    }


def test_compose_itself_refuses_a_second_worker_of_a_serial_queue(services: dict[str, Any]) -> None:
    """It does not scale a service whose container has a name."""
    named = {name for name, service in services.items() if "container_name" in service}
    assert named == {name for name in services if name.startswith("worker-serial.")} != set()
    assert services["beat"]["deploy"] == {"replicas": 2}


def test_every_container_has_few_rights_an_end_and_a_health_check(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"], name
        assert service["restart"] == "always", name
        assert service["healthcheck"]["test"], name
        if "profiles" not in service:
            assert service["stop_grace_period"].removesuffix("s").isdigit(), name
            assert service["init"], name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_only_our_processes_reach_valkey(services: dict[str, Any]) -> None:
    assert rendered()["networks"]["backend"] == {"internal": True}
    reaching = {
        name for name, service in services.items() if "backend" in service.get("networks", [])
    }
    monitoring = {name for name, service in services.items() if "profiles" in service}
    assert reaching == services.keys() - monitoring
    assert services["valkey"]["networks"] == ["backend"]
    assert "ports" not in services["valkey"]


def test_what_is_special_to_compose_is_escaped() -> None:
    text = targets.render_compose(plan_of(), schedules=".", environment=[("PRICE", 'a "$5" one')])[
        "compose.yaml"
    ]
    environment = yaml.safe_load(text)["services"]["beat"]["environment"]
    assert environment["PRICE"] == 'a "$$5" one'


def mounted(document: dict[str, Any]) -> set[str]:
    """Paths of the host."""
    volumes = [path for one in document["services"].values() for path in one.get("volumes", [])]
    return {path.partition(":")[0] for path in volumes if path.startswith(".")}


def test_what_is_mounted_is_rendered_beside_the_file(tmp_path: Path) -> None:
    files = targets.render_compose(plan_of(), schedules="./schedules")
    write(tmp_path, "compose", files)
    paths = mounted(yaml.safe_load((tmp_path / "compose.yaml").read_text())) - {"./schedules"}
    assert "./monitoring/prometheus/rules.yml" in paths
    assert [path for path in paths if not (tmp_path / path).exists()] == []


def test_the_committed_file_mounts_what_lies_in_the_repository() -> None:
    paths = mounted(yaml.safe_load((COMMITTED / "compose.yaml").read_text()))
    assert "../prometheus/rules.yml" in paths
    assert [path for path in paths if not (COMMITTED / path).exists()] == []


def test_prometheus_does_here_what_it_does_elsewhere() -> None:
    """Its configuration differs from deploy/prometheus/prometheus.yml in addresses alone."""
    elsewhere = ROOT / "deploy" / "prometheus" / "prometheus.yml"
    here = COMMITTED / "monitoring" / "prometheus.yml"
    assert without_targets(here.read_text()) == without_targets(elsewhere.read_text())


def without_targets(text: str) -> Any:
    document = yaml.safe_load(text)
    # Here serve is asked from another container, which needs its token.
    document["scrape_configs"][0].pop("authorization", None)
    for part in (*document["scrape_configs"], *document["alerting"]["alertmanagers"]):
        for group in part["static_configs"]:
            group["targets"] = len(group["targets"])
    return document


def test_serve_alone_is_given_the_folder_of_the_access_file() -> None:
    services = yaml.safe_load((COMMITTED / "compose.yaml").read_text())["services"]
    folder = "./access:/etc/supervisor/access:ro"
    assert {name for name, one in services.items() if folder in one.get("volumes", [])} == {"serve"}
    assert (
        "SUPERVISOR_ACCESS_FILE=/etc/supervisor/access/access.yaml\n"
        in (COMMITTED / "serve.env.example").read_text()
    )
    assert not AccessFile(COMMITTED / "access" / "access.yaml.example").policy.tokens


def test_secrets_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    files = targets.render_compose(plan_of(), schedules="schedules")
    made = targets.secret_files(files)
    assert [
        path for path, text in made.items() if "PASSWORD" in text.replace("_PASSWORD=", "")
    ] == []
    write_secrets(tmp_path, made)
    assert {(tmp_path / path).stat().st_mode & 0o777 for path in made} == {0o600}
    (tmp_path / "serve.env").unlink()
    with pytest.raises(InTheWay, match=r"supervisor\.env, serve\.token, valkey\.env"):
        write_secrets(tmp_path, targets.secret_files(files))
    assert not (tmp_path / "serve.env").exists()


def test_of_a_redis_elsewhere_the_password_is_not_made() -> None:
    files = targets.render_compose(plan_of(), schedules="schedules", valkey_image=None)
    made = targets.secret_files(files)
    assert set(made) == {"serve.env", "serve.token"}
