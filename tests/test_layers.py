"""Core, features, tools: modules import their own layer or a lower one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "supervisor"

#: From the ground up: the core up to `app`, then the features, then the tools. `deploy` is a tool
#: that the settings of an app ask for the embedded server.
LAYERS = {
    "ground": "errors logs settings times process",
    "values": "job schedule",
    "store": "store",
    "ledger": "ledger",
    "decisions": "catalog guard",
    "sending": "sending deploy",
    "celery edge": "app worker beat",
    "features": "features",
    "operations": "operate jobs testing",
    "web": "web",
    "cli": "cli __main__",
    "django": "django",
}
LEVEL = {name: level for level, names in enumerate(LAYERS.values()) for name in names.split()}

#: Which features name others.
NAMED = {
    "django": {"adoption"},
    "notices": {"outbound"},
    "sentry": {"outbound"},
    "summary": {"notices"},
    "pings": {"outbound"},
}

WITH_CELERY = {"app", "sending", "worker", "beat", "features", "jobs", "testing", "django"}

#: The package itself is no layer: what imports any module imports it, and with it `installed`. The
#: lists are how the core knows features without naming one: each is imported where it is used.
OUTSIDE = {"__init__", "installed", "lists"}

FOREIGN = {"celery", "kombu", "redbeat", "billiard"}

SOURCES = sorted(PACKAGE.rglob("*.py"))


#: On the top floor: its command runs all verbs. `supervisor/django` is its other name.
DJANGO = PACKAGE / "features" / "django"


#: What a feature adds to a tool, in files of these names.
OF_TOOLS = {"api.py": "web", "metrics.py": "web", "page.py": "web"}


def module_of(path: Path) -> str:
    if path.is_relative_to(DJANGO):
        return "django"
    if path.is_relative_to(PACKAGE / "features") and path.name in OF_TOOLS:
        return OF_TOOLS[path.name]
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


LAYERED = [path for path in SOURCES if module_of(path) not in OUTSIDE]

#: They read and write the schedule of an app, in Celery's and RedBeat's own classes.
READS_CELERY = {PACKAGE / "catalog" / "entries.py"}

WITHOUT_CELERY = [
    path for path in LAYERED if module_of(path) not in WITH_CELERY and path not in READS_CELERY
]


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "supervisor":
            yield from (f"supervisor.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@cache
def tree_at_run_time(path: Path) -> ast.Module:
    """What is imported for annotations alone is not imported when the program runs."""
    tree = ast.parse(path.read_text())

    class Runtime(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            only_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if only_types else self.generic_visit(node)

    Runtime().visit(tree)
    return tree


def ours(tree: ast.AST) -> set[str]:
    names = (name.split(".") for name in imported(tree))
    return {parts[1] for parts in names if parts[0] == "supervisor" and len(parts) > 1}


def test_every_module_has_a_layer() -> None:
    assert {module_of(path) for path in SOURCES} - LEVEL.keys() - OUTSIDE == set()


def test_no_module_imports_a_higher_layer() -> None:
    assert {
        (str(path.relative_to(PACKAGE)), name)
        for path in LAYERED
        for name in ours(ast.parse(path.read_text()))
        if LEVEL.get(name, 0) > LEVEL[module_of(path)]
    } == set()


def features_of(tree: ast.AST) -> set[str]:
    names = (name.split(".") for name in imported(tree))
    return {parts[2] for parts in names if parts[:2] == ["supervisor", "features"] and parts[2:]}


def test_a_feature_imports_only_those_that_it_names() -> None:
    for path in (PACKAGE / "features").rglob("*.py"):
        feature = path.relative_to(PACKAGE / "features").parts[0]
        others = features_of(ast.parse(path.read_text())) - {feature}
        assert others <= NAMED.get(feature, set()), path


def test_only_the_celery_edge_imports_celery() -> None:
    assert [
        (path, name)
        for path in WITHOUT_CELERY
        for name in imported(tree_at_run_time(path))
        if name.split(".")[0] in FOREIGN
    ] == []


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
        ".__init__"
    )


def imported_files() -> dict[str, set[str]]:
    """By module: those of ours that it imports when the program runs, also inside functions."""
    modules = {module_name(path) for path in SOURCES}
    graph = {}
    for path in SOURCES:
        tree = tree_at_run_time(path)
        names = set(imported(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        graph[module_name(path)] = names & modules - {"supervisor", module_name(path)}
    return graph


def test_no_file_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter(imported_files()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


#: The layers that show things: what they read of the ledger has a name there.
READERS = [path for path in LAYERED if module_of(path) in {"web", "cli"}]


def test_what_is_shown_is_read_by_the_ledger() -> None:
    reads = re.compile(r"\bledger\.keys\.\w+|\bkeys\.job\b|\bclient\.\w+")
    found = {path: reads.findall(path.read_text()) for path in READERS}
    assert {path: names for path, names in found.items() if names} == {}


def loaded_by(modules: str, *names: str) -> list[str]:
    """Those of the names that a fresh interpreter has loaded once it has imported the modules."""
    code = f"import sys, {modules}; print(*set({names}) & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def test_the_package_alone_loads_no_celery_no_redis_and_no_database() -> None:
    names = ("celery", "kombu", "redis", "sqlalchemy", "django")
    assert loaded_by("supervisor", *names) == []


def test_a_shell_completes_names_that_are_not_loaded_yet() -> None:
    lists_all = "import supervisor; assert {*supervisor.__all__} <= {*dir(supervisor)}"
    subprocess.run([sys.executable, "-c", lists_all], check=True)


def test_a_beat_and_a_worker_load_no_tool() -> None:
    tools = ("supervisor.operate", "supervisor.web", "supervisor.cli", "supervisor.jobs")
    assert loaded_by("supervisor.worker.startup, supervisor.beat.scheduler", *tools) == []


#: What a command line, a worker and beat import.
PROGRAMS = "supervisor.cli, supervisor.worker.startup, supervisor.beat.scheduler"


def test_nothing_but_the_module_of_an_extra_loads_its_library() -> None:
    # Of OpenTelemetry redis-py loads other parts by itself.
    assert loaded_by(PROGRAMS, "sqlalchemy", "opentelemetry.propagate") == []
    assert "sqlalchemy" in loaded_by("supervisor.features.on_commit.sqlalchemy", "sqlalchemy")
    assert loaded_by("supervisor.features.on_commit.django", "sqlalchemy") == []
