"""The bill of materials of a deployment: valid, whole, and the same from everywhere."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """As `make sbom` writes it; the tool holds it against the published schema itself."""
    file = tmp_path_factory.mktemp("sbom") / "sbom.json"
    # -o: what is installed is what runs this test.
    command = ["make", "-o", ".venv/.installed", "sbom", f"SBOM={file}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(file.read_text()))


def test_the_sbom_has_every_installed_package_with_its_hashes(
    bill: dict[str, Any],
) -> None:
    pins = re.findall(r"^([\w.-]+)(?:\[.*\])?==([^\s;]+)", pinned(), re.MULTILINE)
    assert {(part["name"], part["version"]) for part in bill["components"]} == set(pins)
    for part in bill["components"]:
        [source] = part["externalReferences"]
        assert {kind["alg"] for kind in source["hashes"]} == {"SHA-256"}, part["name"]
    assert bill["metadata"]["component"]["name"] == "celery-beat-supervisor"


def test_the_sbom_names_no_host_but_the_public_index(bill: dict[str, Any]) -> None:
    urls = re.findall(r"\w+://[^/\"]+", json.dumps(bill["components"]))
    assert set(urls) == {"https://pypi.org"}
    assert str(ROOT) not in json.dumps(bill)


def pinned() -> str:
    return (ROOT / "deploy" / "requirements.txt").read_text()
