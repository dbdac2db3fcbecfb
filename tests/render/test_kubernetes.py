"""The manifests: against their published schemas, through kustomize, and what one more job adds."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.deploy import targets
from supervisor.deploy.directory import texts_of, write
from supervisor.deploy.targets import KubernetesOptions
from supervisor.job.spec import JobSpec
from tests.programs import optional, output_of
from tests.render import published
from tests.render.jobs import ROOT, examples, job, plan_of

RULES = """\
# What is wrong.
groups:
  - name: supervisor
    rules:
      - alert: SupervisorAway
        expr: supervisor_up == 0
        annotations:
          summary: "{{ $labels.instance }}: away"
"""

needs_kubectl = optional("kubectl")


def files_of(*jobs: JobSpec, **options: object) -> Mapping[str, str]:
    chosen: dict[str, Any] = {"schedules": texts_of(ROOT / "schedules"), "rules": RULES, **options}
    return targets.render_kubernetes(plan_of(*jobs), KubernetesOptions(**chosen))


def objects(files: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for text in files.values():
        for document in yaml.safe_load_all(text):
            if not document["apiVersion"].startswith("kustomize."):
                yield document


def pods(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]
        for found in objects(files)
        if "template" in found["spec" if "spec" in found else "metadata"]
    }


def faults(document: dict[str, Any]) -> list[str]:
    kind = f"{document['apiVersion']}/{document['kind']}"
    return [f"{kind} {fault}" for fault in published.faults(published.kubernetes()[kind], document)]


@pytest.fixture(scope="module")
def files() -> Mapping[str, str]:
    return files_of(*examples())


def test_every_object_is_what_its_published_schema_allows(files: Mapping[str, str]) -> None:
    found = list(objects(files))
    assert [fault for one in found for fault in faults(one)] == []
    assert {one["kind"] for one in found} >= {
        *("Deployment", "NetworkPolicy", "ConfigMap", "PodMonitor", "PrometheusRule"),
        *("ScaledObject", "TriggerAuthentication"),
    }


def test_the_schema_finds_a_mistake(files: Mapping[str, str]) -> None:
    deployment = next(one for one in objects(files) if one["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["comand"] = ["celery"]
    assert "comand" in str(faults(deployment))


@needs_kubectl
@pytest.mark.parametrize("overlay", ["standalone", "production"])
def test_kustomize_makes_valid_objects_of_an_overlay(
    files: Mapping[str, str], overlay: str, tmp_path: Path
) -> None:
    write(tmp_path, "kubernetes", files)
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = list(yaml.safe_load_all(done.stdout))
    assert [fault for one in found for fault in faults(one)] == []
    names = Counter((one["kind"], one["metadata"]["name"]) for one in found)
    assert max(names.values()) == 1
    namespaces = {one["metadata"].get("namespace") for one in found if one["kind"] != "Namespace"}
    assert namespaces == {"supervisor"}
    replicas = {
        one["metadata"]["name"]: one["spec"].get("replicas")
        for one in found
        if one["kind"] == "Deployment"
    }
    assert replicas["beat"] == 2
    assert replicas["worker-serial-checksum-docs"] == 1
    assert replicas["worker-default"] == (None if overlay == "production" else 1)


@needs_kubectl
def test_the_access_component_gives_serve_the_file(
    files: Mapping[str, str], tmp_path: Path
) -> None:
    write(tmp_path, "kubernetes", files)
    overlay = tmp_path / "overlays" / "production"
    named = overlay / "kustomization.yaml"
    named.write_text(
        named.read_text().replace("# - ../../components/access", "- ../../components/access")
    )
    found = list(yaml.safe_load_all(output_of("kubectl", "kustomize", overlay)))
    assert [fault for one in found for fault in faults(one)] == []
    with_file = {
        one["metadata"]["name"]
        for one in found
        if "/etc/supervisor/access/access.yaml" in str(one)
        and "'secretName': 'supervisor-access'" in str(one)
    }
    assert with_file == {"serve"}


def test_one_more_serial_job_adds_exactly_its_worker(files: Mapping[str, str]) -> None:
    after = files_of(*examples(), job("mail", serial=True, time_limit="2m"))
    assert after.keys() - files.keys() == {"base/worker-serial-mail.yaml"}
    assert {name for name in files if after[name] != files[name]} == {"base/kustomization.yaml"}
    listed = (text["base/kustomization.yaml"].splitlines() for text in (files, after))
    before, now = map(set, listed)
    assert now - before == {"  - worker-serial-mail.yaml"}
    assert before <= now
    assert pods(after)["worker-serial-mail"]["terminationGracePeriodSeconds"] == 150


def test_a_serial_worker_is_one_process_that_is_never_doubled(files: Mapping[str, str]) -> None:
    worker = yaml.safe_load(files["base/worker-serial-checksum-docs.yaml"])
    assert worker["spec"]["replicas"] == 1
    assert worker["spec"]["strategy"] == {"type": "Recreate"}
    command = worker["spec"]["template"]["spec"]["containers"][0]["command"]
    assert "-Q serial.checksum-docs -c 1 --prefetch-multiplier 1" in " ".join(command)


def test_pods_run_what_the_containers_of_compose_run(files: Mapping[str, str]) -> None:
    """Which is tried: see test_processes."""
    options = targets.ComposeOptions(schedules="./schedules")
    text = targets.render_compose(plan_of(*examples()), options)["compose.yaml"]
    commands = [one.get("command") for one in yaml.safe_load(text)["services"].values()]
    for name, pod in pods(files).items():
        if name != "valkey":
            assert pod["containers"][0]["command"] in commands, name


def test_no_probe_asks_all_workers(files: Mapping[str, str]) -> None:
    for name, pod in pods(files).items():
        container = pod["containers"][0]
        assert "livenessProbe" in container, name
        assert "inspect" not in str(container), name


def test_every_pod_has_few_rights(files: Mapping[str, str]) -> None:
    assert pods(files).keys() >= {"beat", "serve", "worker-default", "valkey"}
    for name, pod in pods(files).items():
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


def test_a_worker_is_given_the_grace_of_its_longest_job(files: Mapping[str, str]) -> None:
    longest = max(spec.time_limit or timedelta() for spec in examples())
    grace = pods(files)["worker-default"]["terminationGracePeriodSeconds"]
    assert timedelta(seconds=grace) > longest


def test_budgets_and_policies_select_what_they_name(files: Mapping[str, str]) -> None:
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"].items()
        for one in objects(files)
        if one["kind"] in ("Deployment", "StatefulSet")
    }
    for one in objects(files):
        if one["kind"] == "PodDisruptionBudget":
            selected = one["spec"]["selector"]["matchLabels"].items()
            chosen = [name for name, own in labels.items() if selected <= own]
            assert chosen == [one["metadata"]["name"]]
        if one["kind"] == "NetworkPolicy":
            selected = one["spec"]["podSelector"]["matchLabels"].items()
            assert any(selected <= own for own in labels.values())


def test_keda_looks_at_every_queue_of_the_default_worker() -> None:
    files = files_of(job("plain"), job("mail", queue="mail"), job("own", serial=True))
    scaled = next(one for one in objects(files) if one["kind"] == "ScaledObject")
    lists = [trigger["metadata"]["listName"] for trigger in scaled["spec"]["triggers"]]
    assert lists == ["celery", "mail"]
    assert scaled["spec"]["minReplicaCount"] == 1


def test_names_are_dns_labels_and_never_the_same() -> None:
    queues = ["a.b", "a-b", "a_b", "A-b", "x" * 100, "x" * 99, "1"]
    plan = plan_of(*(job(f"job{n}", serial=queue) for n, queue in enumerate(queues)))
    names = {targets.object_name(worker) for worker in plan.workers}
    assert len(names) == len(queues) + 1
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)


def test_rules_are_taken_over_as_they_are_and_promtool_takes_them(
    files: Mapping[str, str], tmp_path: Path
) -> None:
    rule = yaml.safe_load(files["components/monitoring/prometheusrule.yaml"])
    assert rule["spec"] == yaml.safe_load(RULES)
    assert "# What is wrong." in files["components/monitoring/prometheusrule.yaml"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    output_of("promtool", "check", "rules", tmp_path / "rules.yml")


def test_without_rules_of_ones_own_the_packages_are_taken() -> None:
    files = files_of(rules=None)
    rule = yaml.safe_load(files["components/monitoring/prometheusrule.yaml"])
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())


def egress_of(component: str, files: Mapping[str, str]) -> set[int]:
    """The ports that pods of this kind may reach, by all policies that select them."""
    ports: set[int] = set()
    for one in objects(files):
        if one["kind"] != "NetworkPolicy" or "Egress" not in one["spec"]["policyTypes"]:
            continue
        selector = one["spec"]["podSelector"]
        allowed = [{selector["matchLabels"].get("app.kubernetes.io/component")}]
        allowed += [set(part["values"]) for part in selector.get("matchExpressions", [])]
        if component in set().union(*allowed):
            ports |= {
                port["port"] for rule in one["spec"].get("egress", []) for port in rule["ports"]
            }
    return ports


@pytest.mark.parametrize(
    ("address", "ports"),
    [
        (None, set()),
        ("https://hc-ping.com/6ee0a17a", {443}),
        ("http://checks.internal/a", {80}),
        ("https://checks.internal:8443/a", {8443}),
        ("https://hc-ping.com/${CHECK}", {443}),
        ("https://${CHECKS}/a", {443}),
        ("https://user:${PASSWORD}@checks.internal:8000/", {8000}),
        ("https://checks.internal:${PORT}/a", {80, 443}),
        ("${CHECK}", {80, 443}),
        ("${file:/run/secrets/check}", {80, 443}),
    ],
)
def test_beat_reaches_redis_and_the_addresses_of_pings(
    address: str | None, ports: set[int]
) -> None:
    files = files_of(job("quiet"), job("pinging", ping_url=address))
    assert egress_of("beat", files) == {53, 6379} | ports
    assert egress_of("serve", files) == {53, 6379}
    assert [fault for one in objects(files) for fault in faults(one)] == []
    assert str(address) not in files["base/network.yaml"]


@pytest.mark.parametrize(
    ("address", "ports"),
    [
        ("${SLACK_URL}", {80, 443, 465, 587}),
        ("mailtos://beat:${PASSWORD}@mail.test?to=ops@jobs.test", {465, 587}),
        ("mailto://mail.test:2525?to=ops@jobs.test", {2525}),
        ("pagerduty://integration@api:key", {443}),
        ("slack://[a/b/c", {443}),
    ],
)
def test_beat_reaches_the_addresses_of_notices(address: str, ports: set[int]) -> None:
    files = files_of(job("quiet"), job("loud", notify=[{"url": address, "events": ["lost"]}]))
    assert egress_of("beat", files) == {53, 6379} | ports


def test_beat_reaches_sentry_where_a_job_checks_in() -> None:
    assert egress_of("beat", files_of(job("watched", sentry_monitor=True))) == {53, 6379, 443}


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("valueFrom") for one in pod["containers"][0]["env"]}


def test_a_broker_of_the_apps_own_and_secrets_of_jobs_may_be_given(
    files: Mapping[str, str],
) -> None:
    for name, pod in pods(files).items():
        if name == "valkey":
            continue
        broker = {"name": "supervisor-redis", "key": "broker", "optional": True}
        assert variables(pod)["CELERY_BROKER_URL"] == {"secretKeyRef": broker}, name
        jobs = [{"secretRef": {"name": "supervisor-jobs", "optional": True}}]
        assert pod["containers"][0].get("envFrom") == (None if name == "serve" else jobs), name


def test_serve_has_the_memory_that_ten_thousand_jobs_need(files: Mapping[str, str]) -> None:
    """docs/how-to/kubernetes.md: 0.4 GiB for one scraper, 0.6 for two."""
    assert pods(files)["serve"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
