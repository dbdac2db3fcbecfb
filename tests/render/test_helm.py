"""The chart: linted and rendered by Helm's own library, and held against the kustomize base."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.deploy import targets
from supervisor.deploy.directory import texts_of, write
from supervisor.deploy.targets import CHART, KubernetesOptions
from tests.render.jobs import ROOT, examples, job, plan_of
from tests.render.test_kubernetes import faults, objects

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
    options = KubernetesOptions(schedules=texts_of(ROOT / "schedules"))
    rendered = tmp_path_factory.mktemp("helm")
    write(rendered, "helm", targets.render_helm(plan_of(*examples()), options))
    return rendered


def values_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((directory / "jobs.yaml").read_text())
    return found


def rendered(directory: Path, **values: object) -> list[dict[str, Any]]:
    with helm.Chart.load(directory / CHART) as chart:
        texts = chart.render(values_of(directory) | values, name="jobs", namespace="supervisor")
    documents = [one for text in texts.values() for one in yaml.safe_load_all(text)]
    return [one for one in documents if one]


#: Labels that tell the objects of one release from those of another, and Helm's own.
OWN = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/part-of",
    "helm.sh/chart",
    "process",
}


def plain(value: Any) -> Any:
    """Without what a release adds: its labels, its name before those of objects."""
    match value:
        case dict():
            return {name: plain(one) for name, one in value.items() if name not in OWN}
        case list():
            return [plain(one) for one in value]
        case str():
            return value.removeprefix("jobs-")
    return value


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    named = {(one["kind"], plain(one["metadata"]["name"])): plain(one) for one in found}
    assert len(named) == len(found)
    return named


def test_helm_lints_it_without_a_warning(directory: Path) -> None:
    for values in ({}, EVERYTHING, scaled(directory), scaled(directory, trigger="prometheus")):
        report = helm.lint(directory / CHART, values_of(directory) | values, strict=True)
        assert report["errors"] == []
        told = [message["error"] for message in report["messages"]]
        assert [text for text in told if "icon is recommended" not in text] == []


def test_every_object_is_what_its_published_schema_allows(directory: Path) -> None:
    for values in ({}, EVERYTHING, scaled(directory), scaled(directory, trigger="prometheus")):
        found = rendered(directory, **values)
        assert [fault for one in found for fault in faults(one)] == []


def test_it_has_the_objects_of_the_kustomize_base_and_its_components(directory: Path) -> None:
    options = KubernetesOptions(schedules=texts_of(ROOT / "schedules"))
    files = targets.render_kubernetes(plan_of(*examples()), options)
    shared = {path: files[path] for path in files if re.match("base/|components/[mv]", path)}
    wanted = by_name([*objects(shared)])
    found = by_name(rendered(directory, monitoring={"enabled": True}, valkey={"enabled": True}))
    wanted.pop(("Namespace", "supervisor"))
    # Which pods PodMonitor and rules are of, says the release.
    for kind in ("PodMonitor", "PrometheusRule"):
        wanted[kind, "jobs"] = wanted.pop((kind, "supervisor"))
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert facts(found[name]) == facts(one), name


def facts(one: Mapping[str, Any]) -> Any:
    """What an object says, without what the two may say differently."""
    pod = one.get("spec", {}).get("template", {}).get("spec", {})
    for container in pod.get("containers", []):
        container.pop("imagePullPolicy", None)
    if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", "valkey"):
        # KEDA asks for the length of a queue; here no worker has a ScaledObject.
        one["spec"]["ingress"][0]["from"] = one["spec"]["ingress"][0]["from"][:1]
    return one.get("spec", one.get("data"))


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


def scaled(directory: Path, **asked: object) -> dict[str, Any]:
    """The values for a default worker that KEDA scales."""
    workers = values_of(directory)["workers"]
    workers["default"] |= {"queues": ["celery", "a.b"], "autoscaling": {"maxReplicas": 9}}
    return {"workers": workers, "valkey": {"enabled": True}, "autoscaling": asked}


def of_kind(kind: str, found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == kind}


def test_keda_scales_the_workers_that_ask_for_it_by_their_lists(directory: Path) -> None:
    found = rendered(directory, **scaled(directory))
    [(name, spec)] = of_kind("ScaledObject", found).items()
    assert name == spec["scaleTargetRef"]["name"] == "jobs-worker-default"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 9)
    assert "replicas" not in of_kind("Deployment", found)[name]
    lists = [trigger["metadata"]["listName"] for trigger in spec["triggers"]]
    assert lists == ["celery", "a.b"]
    asks = {trigger["authenticationRef"]["name"] for trigger in spec["triggers"]}
    assert asks == of_kind("TriggerAuthentication", found).keys()
    assert "keda" in str(of_kind("NetworkPolicy", found)["jobs-valkey"]["ingress"])


def test_keda_may_ask_prometheus_and_needs_no_password_then(directory: Path) -> None:
    found = rendered(directory, **scaled(directory, trigger="prometheus"))
    [spec] = of_kind("ScaledObject", found).values()
    [trigger] = spec["triggers"]
    wanted = 'supervisor_queue_length{namespace="supervisor", queue=~"celery|a\\\\.b"}'
    assert trigger["metadata"]["query"] == f"sum(max by (queue) ({wanted}))"
    assert of_kind("TriggerAuthentication", found) == {}
    assert "keda" not in str(of_kind("NetworkPolicy", found)["jobs-valkey"]["ingress"])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"app": ""}, "app"),
        ({"schedule": {}}, "schedule"),
        ({"workers": {"a": {"queues": ["a"], "serial": True, "replicas": 2}}}, "replicas"),
        ({"workers": {"a": {"queues": ["a"], "serial": True, "autoscaling": {}}}}, "autoscaling"),
        ({"workers": {"a": {"queues": ["a"], "autoscaling": {"minReplicas": 0}}}}, "minReplicas"),
        ({"workers": {"a": {"queues": ["a"], "autoscaling": {"minReplicas": 6}}}}, "above"),
        ({"autoscaling": {"trigger": "cpu"}}, "trigger"),
        ({"workers": {"A_b": {"queues": ["a"]}}}, "A_b"),
    ],
)
def test_values_that_make_no_sense_are_refused(
    values: dict[str, Any], problem: str, directory: Path
) -> None:
    with pytest.raises(helm.HelmError, match=problem):
        rendered(directory, **values)


def test_one_more_serial_job_is_one_more_worker_of_the_values() -> None:
    jobs = [job("plain"), job("mail", serial=True, time_limit="2m")]
    files = targets.render_helm(plan_of(*jobs), KubernetesOptions())
    workers = yaml.safe_load(files["jobs.yaml"])["workers"]
    assert workers.keys() == {"default", "serial-mail"}
    assert workers["serial-mail"] == {
        "name": "serial.mail",
        "queues": ["serial.mail"],
        "serial": True,
        "terminationGracePeriodSeconds": 150,
    }
