"""The chart: linted and rendered by Helm's own library, and held against published schemas."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.deploy import targets
from supervisor.deploy.directory import texts_of, write
from supervisor.deploy.plan import VALKEY_ARGUMENTS
from supervisor.deploy.targets import CHART
from tests.programs import output_of
from tests.tools.deploy import published
from tests.tools.deploy.jobs import ROOT, examples, plan_of

# Not in `make setup`, as it has 85 MB; `make test-system` installs it.
helm = pytest.importorskip("helm_python")

EVERYTHING = {
    "monitoring": {"enabled": True, "dashboard": True},
    "valkey": {"enabled": True},
    "secrets": {"access": "supervisor-access"},
    "stateClaim": "state",
    "pingPorts": [443],
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of the examples, and their values."""
    texts = texts_of(ROOT / "schedules")
    rendered = tmp_path_factory.mktemp("helm")
    write(rendered, "helm", targets.render_helm(plan_of(*examples()), texts))
    return rendered


def values_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((directory / "jobs.yaml").read_text())
    return document


def rendered(directory: Path, **values: object) -> list[dict[str, Any]]:
    with helm.Chart.load(directory / CHART) as chart:
        texts = chart.render(values_of(directory) | values, name="jobs", namespace="supervisor")
    documents = [one for text in texts.values() for one in yaml.safe_load_all(text)]
    return [one for one in documents if one]


def faults(document: dict[str, Any]) -> list[str]:
    kind = f"{document['apiVersion']}/{document['kind']}"
    return [f"{kind} {fault}" for fault in published.faults(published.kubernetes()[kind], document)]


def pods(directory: Path) -> dict[str, dict[str, Any]]:
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in rendered(directory, **EVERYTHING)
        if one["kind"] in ("Deployment", "StatefulSet")
    }


def test_helm_lints_it_without_a_warning(directory: Path) -> None:
    for values in ({}, EVERYTHING, scaled(directory)):
        report = helm.lint(directory / CHART, values_of(directory) | values, strict=True)
        assert report["errors"] == []
        texts = [message["error"] for message in report["messages"]]
        assert [text for text in texts if "icon is recommended" not in text] == []


def test_every_object_is_what_its_published_schema_allows(directory: Path) -> None:
    for values in ({}, EVERYTHING, scaled(directory)):
        files = rendered(directory, **values)
        assert [fault for one in files for fault in faults(one)] == []


def test_the_schema_finds_a_mistake(directory: Path) -> None:
    deployment = next(one for one in rendered(directory) if one["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["comand"] = ["celery"]
    assert "comand" in str(faults(deployment))


def test_pods_run_what_the_containers_of_compose_run(directory: Path) -> None:
    """Which is tried: see test_processes."""
    files = targets.render_compose(plan_of(*examples()), schedules="./schedules")
    text = files["compose.yaml"]
    commands = [one.get("command") for one in yaml.safe_load(text)["services"].values()]
    for name, pod in pods(directory).items():
        if name != "jobs-valkey":
            assert pod["containers"][0]["command"] in commands, name


def test_its_valkey_has_the_arguments_of_the_others(directory: Path) -> None:
    container = pods(directory)["jobs-valkey"]["containers"][0]
    text = " ".join(map(str, (*container.get("command", []), *container.get("args", []))))
    for argument in VALKEY_ARGUMENTS:
        assert argument in text


def test_no_probe_asks_all_workers(directory: Path) -> None:
    for name, pod in pods(directory).items():
        assert "livenessProbe" in pod["containers"][0], name
        assert "inspect" not in str(pod["containers"][0]), name


def test_every_pod_has_few_rights(directory: Path) -> None:
    expected = {f"jobs-{name}" for name in ("beat", "serve", "worker-default", "valkey")}
    assert pods(directory).keys() >= expected
    for name, pod in pods(directory).items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert pod["automountServiceAccountToken"] is False, name
        # Kubernetes would hand SUPERVISOR_* variables to a pod beside a service of that name.
        assert pod["enableServiceLinks"] is False, name
        assert pod["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name


def test_a_serial_worker_is_one_process_that_is_never_doubled(directory: Path) -> None:
    spec = of_kind("Deployment", rendered(directory))["jobs-worker-serial-checksum-docs"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert "-Q serial.checksum-docs -c 1 --prefetch-multiplier 1" in " ".join(command)


def test_there_are_two_beats(directory: Path) -> None:
    assert of_kind("Deployment", rendered(directory))["jobs-beat"]["replicas"] == 2


def test_a_worker_is_given_the_grace_of_its_longest_job(directory: Path) -> None:
    longest = max(spec.time_limit or timedelta() for spec in examples())
    grace = pods(directory)["jobs-worker-default"]["terminationGracePeriodSeconds"]
    assert timedelta(seconds=grace) > longest


def test_serve_has_the_memory_that_ten_thousand_jobs_need(directory: Path) -> None:
    """`serve` needs 0.4 GiB for one scraper, 0.6 for two."""
    [container] = pods(directory)["jobs-serve"]["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}


def test_budgets_and_policies_select_what_they_name(directory: Path) -> None:
    files = rendered(directory, **EVERYTHING)
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"].items()
        for one in files
        if one["kind"] in ("Deployment", "StatefulSet")
    }
    for one in files:
        if one["kind"] == "PodDisruptionBudget":
            selected = one["spec"]["selector"]["matchLabels"].items()
            chosen = [name for name, own in labels.items() if selected <= own]
            assert chosen == [one["metadata"]["name"]]
        if one["kind"] == "NetworkPolicy":
            selected = one["spec"]["podSelector"].get("matchLabels", {}).items()
            assert any(selected <= own for own in labels.values())


def test_a_broker_of_the_apps_own_and_secrets_of_jobs_may_be_given(directory: Path) -> None:
    broker = {"name": "supervisor-redis", "key": "broker", "optional": True}
    jobs = [{"secretRef": {"name": "supervisor-jobs", "optional": True}}]
    for name, pod in pods(directory).items():
        if name == "jobs-valkey":
            continue
        container = pod["containers"][0]
        variables = {one["name"]: one.get("valueFrom") for one in container["env"]}
        assert variables["CELERY_BROKER_URL"] == {"secretKeyRef": broker}, name
        assert container.get("envFrom") == (None if name == "jobs-serve" else jobs), name


def egress_of(component: str, found: list[dict[str, Any]]) -> set[int]:
    """The ports that pods of this kind may reach, by all policies that select them."""
    ports: set[int] = set()
    for one in found:
        if one["kind"] != "NetworkPolicy" or "Egress" not in one["spec"]["policyTypes"]:
            continue
        selector = one["spec"]["podSelector"]
        allowed = [{selector.get("matchLabels", {}).get("app.kubernetes.io/component")}]
        allowed += [set(part["values"]) for part in selector.get("matchExpressions", [])]
        if component in set().union(*allowed):
            ports |= {
                port["port"] for rule in one["spec"].get("egress", []) for port in rule["ports"]
            }
    return ports


def test_beat_reaches_redis_and_the_ports_of_pings_and_serve_redis_alone(directory: Path) -> None:
    files = rendered(directory, pingPorts=[443, 8443])
    assert egress_of("beat", files) == {53, 6379, 443, 8443}
    assert egress_of("serve", files) == {53, 6379}


def test_its_rules_and_dashboard_are_those_of_the_package(directory: Path, tmp_path: Path) -> None:
    files = rendered(directory, **EVERYTHING)
    [spec] = of_kind("PrometheusRule", files).values()
    assert spec == yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(spec))
    output_of("promtool", "check", "rules", tmp_path / "rules.yml")
    [dashboard] = [one["data"] for one in files if "periodic-jobs.json" in one.get("data", {})]
    written = json.loads(dashboard["periodic-jobs.json"])
    del written["//"]
    assert written == json.loads((ROOT / "deploy/grafana/periodic-jobs.json").read_text())


def test_the_chart_of_the_repository_is_the_whole_chart(directory: Path) -> None:
    """As the release packages it: rules and dashboard are links there."""
    values = values_of(directory) | {"monitoring": {"enabled": True, "dashboard": True}}
    with helm.Chart.load(ROOT / "deploy" / "helm" / CHART) as chart:
        texts = chart.render(values, name="jobs", namespace="supervisor")
    assert "SupervisorBeatNotTicking" in str(texts) or "alert:" in str(texts)
    assert "periodic-jobs.json" in str(texts)


def test_serve_has_the_access_file_where_a_secret_is_named(directory: Path) -> None:
    def serve(**values: object) -> str:
        [found] = [
            one["spec"]["template"]["spec"]
            for one in rendered(directory, **values)
            if (one["kind"], one["metadata"]["name"]) == ("Deployment", "jobs-serve")
        ]
        return str(found)

    assert "SUPERVISOR_ACCESS_FILE" not in serve()
    with_file = serve(secrets={"access": "ours"})
    assert "'value': '/etc/supervisor/access/access.yaml'" in with_file
    assert "'secretName': 'ours'" in with_file


def test_an_autoscaler_decides_on_replicas_that_are_null(directory: Path) -> None:
    workers = values_of(directory)["workers"]
    workers["default"]["replicas"] = None
    shown = {
        one["metadata"]["name"]: one["spec"].get("replicas")
        for one in rendered(directory, workers=workers)
        if one["kind"] == "Deployment"
    }
    assert shown["jobs-worker-default"] is None
    assert shown["jobs-worker-serial-checksum-docs"] == 1


def scaled(directory: Path) -> dict[str, Any]:
    """The values for a default worker that KEDA scales."""
    workers = values_of(directory)["workers"]
    workers["default"] |= {"queues": ["celery", "a.b"], "autoscaling": {"maxReplicas": 9}}
    return {"workers": workers}


def of_kind(kind: str, found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == kind}


def test_keda_scales_the_workers_that_ask_for_it_by_what_prometheus_knows(directory: Path) -> None:
    files = rendered(directory, **scaled(directory))
    [(name, spec)] = of_kind("ScaledObject", files).items()
    assert name == spec["scaleTargetRef"]["name"] == "jobs-worker-default"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 9)
    assert "replicas" not in of_kind("Deployment", files)[name]
    [trigger] = spec["triggers"]
    lengths = 'supervisor_queue_length{namespace="supervisor", queue=~"celery|a\\\\.b"}'
    assert trigger["metadata"]["query"] == f"sum(max by (queue) ({lengths}))"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"app": ""}, "app"),
        ({"schedule": {}}, "schedule"),
        ({"workers": {"a": {"queues": ["a"], "serial": True, "replicas": 2}}}, "replicas"),
        ({"workers": {"a": {"queues": ["a"], "serial": True, "autoscaling": {}}}}, "autoscaling"),
        ({"workers": {"a": {"queues": ["a"], "autoscaling": {"minReplicas": 0}}}}, "minReplicas"),
        ({"workers": {"a": {"queues": ["a"], "autoscaling": {"minReplicas": 6}}}}, "above"),
        ({"autoscaling": {"prometheus": "here"}}, "prometheus"),
        ({"workers": {"A_b": {"queues": ["a"]}}}, "A_b"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    values: dict[str, Any], problem: str, directory: Path
) -> None:
    with pytest.raises(helm.HelmError, match=problem):
        rendered(directory, **values)
