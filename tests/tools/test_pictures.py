"""`make screenshots` still runs, and what it took before is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.programs import needs
from tests.waiting import scaled
from tools.pictures.diagrams import DOCS, THEMES, diagrams_of, name_of

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"

MOST_BYTES = 150_000

pytestmark = needs("chromium")


def faults_of(picture: Path) -> list[str]:
    with Image.open(picture) as opened:
        image = opened.convert("RGB")
    colours = image.getcolors(image.width * image.height) or []
    most_used = max(count for count, _ in colours) / (image.width * image.height)
    faults = [f"{picture.name} is empty"] if len(colours) < 16 or most_used > 0.99 else []
    too_large = picture.stat().st_size > MOST_BYTES
    return [
        *faults,
        *([f"{picture.name} is larger than {MOST_BYTES:,} bytes"] if too_large else []),
    ]


def test_each_diagram_is_drawn_as_it_is_written() -> None:
    texts = [text for path in DOCS.rglob("*.md") for text in diagrams_of(path.read_text())]
    drawn = {path.name for path in PICTURES.glob("diagram-*.svg")}
    assert len(texts) > 1
    assert drawn == {f"diagram-{name_of(t)}-{scheme}.svg" for t in texts for scheme in THEMES}


@pytest.mark.timeout(900)
def test_the_pictures_can_be_taken_and_none_is_empty(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.pictures", "--to", str(tmp_path), "--ends", "2"]
    subprocess.run(command, check=True, timeout=scaled(200))
    taken = {picture.name for picture in tmp_path.glob("*.png")}
    assert taken == {picture.name for picture in PICTURES.glob("*.png")}
    pictures = [*tmp_path.glob("*.png"), *PICTURES.glob("*.png")]
    assert [fault for picture in pictures for fault in faults_of(picture)] == []
