"""Plan -> a kustomize base, components and overlays: a Deployment for each process.

base: what every cluster takes. components: Valkey, and what needs others' kinds (the Prometheus
operator's, KEDA's). overlays: two ways to put them together, to be copied and changed.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from supervisor.job.spec import SERIAL_PREFIX
from supervisor.render import images, monitoring
from supervisor.render.plan import PORT, VALKEY_ARGUMENTS, VALKEY_STOP_SECONDS, Plan, Process, Role
from supervisor.render.schedule_texts import block
from supervisor.render.templating import Files, Templates

#: A Deployment's name, and room for what Kubernetes adds to it in the names of its pods.
LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """schedules: texts by file name. rules: the text of Prometheus rules, None for our own."""

    schedules: Mapping[str, str] = field(default_factory=dict)
    image: str = images.APP
    valkey_image: str = images.VALKEY
    namespace: str = "supervisor"
    rules: str | None = None
    environment: tuple[tuple[str, str], ...] = ()


def render(plan: Plan, options: KubernetesOptions) -> Files:
    shared = {"plan": plan, "options": options, "images": images, "port": PORT, "Role": Role}
    templates = Templates("kubernetes", **shared)
    templates.add_filters(block=block, object_name=object_name, shell=shlex.join)
    base = {
        "namespace": templates.render("namespace"),
        "schedules": templates.render("schedules"),
        "network": templates.render("network"),
        "beat": templates.render("process", process=plan.beat),
        "serve": templates.render("process", process=plan.serve),
    }
    for worker in plan.workers:
        base[object_name(worker)] = templates.render("process", process=worker)
    rules = monitoring.text_of(monitoring.RULES) if options.rules is None else options.rules
    watched = {
        "podmonitor": templates.render("podmonitor"),
        "prometheusrule": templates.render("prometheusrule", rules=rules),
    }
    valkey = {"arguments": VALKEY_ARGUMENTS, "stop_seconds": VALKEY_STOP_SECONDS}
    files = {
        **listed(templates, "base", base),
        **listed(templates, "components/monitoring", watched),
        **listed(templates, "components/valkey", {"valkey": templates.render("valkey", **valkey)}),
        **listed(templates, "components/keda", {"scaledobject": templates.render("scaledobject")}),
    }
    for overlay in ("standalone", "production"):
        files[f"overlays/{overlay}/kustomization.yaml"] = templates.render(overlay)
    files["overlays/standalone/state.yaml"] = templates.render("state")
    return files


def listed(templates: Templates, folder: str, members: Mapping[str, str]) -> Files:
    """The members' files, and the kustomization that names them."""
    template = folder.rpartition("/")[2]
    files = {f"{folder}/{name}.yaml": content for name, content in members.items()}
    names = sorted(f"{name}.yaml" for name in members)
    files[f"{folder}/kustomization.yaml"] = templates.render(f"kustomize-{template}", names=names)
    return files


def object_name(process: Process) -> str:
    """A DNS label; with a part of a hash in it where two names might become one."""
    if process.role is not Role.WORKER:
        return process.name
    own = process.name.removeprefix(SERIAL_PREFIX)
    label = re.sub(r"[^a-z0-9]+", "-", own.lower()).strip("-")
    if label != own or len(own) > LONGEST_NAME:
        digest = hashlib.sha256(own.encode()).hexdigest()[:6]
        label = f"{label[: LONGEST_NAME - 7].strip('-')}-{digest}"
    return f"worker-serial-{label}" if process.single else f"worker-{label}"
