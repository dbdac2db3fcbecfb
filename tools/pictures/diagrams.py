"""Draws the mermaid diagrams of the pages for the site: no reader's browser asks another host.

The site shows the drawings in place of the text (deploy/site/hooks.py); GitHub draws the text.
After a change of a diagram: `npm pack mermaid@11`, unpack it, and run
`python -m tools.pictures.diagrams package/dist/mermaid.min.js`.
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from pathlib import Path

from playwright.sync_api import Page

from tests.tools.web.browser import chromium

DOCS = Path(__file__).parents[2] / "docs"

DRAW = """async ([text, theme]) => {
  const flowchart = {htmlLabels: false};
  mermaid.initialize({startOnLoad: false, theme, htmlLabels: false, flowchart});
  return (await mermaid.render("diagram", text)).svg;
}"""

THEMES = {"light": "neutral", "dark": "dark"}


def main() -> None:
    for old in (DOCS / "pictures").glob("diagram-*.svg"):
        old.unlink()
    with chromium() as browser:
        page = browser.new_page()
        page.add_script_tag(path=sys.argv[1])
        for path in DOCS.rglob("*.md"):
            for text in diagrams_of(path.read_text()):
                draw(page, text)


def diagrams_of(markdown: str) -> list[str]:
    return [block.split("```")[0] for block in markdown.split("```mermaid\n")[1:]]


def name_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]


def draw(page: Page, text: str) -> None:
    for scheme, theme in THEMES.items():
        svg = page.evaluate(DRAW, [text, theme])
        # As a picture it is as wide as it was drawn, or as the page if that is narrower.
        svg = re.sub(r'width="100%"(.*?viewBox="0 0 ([\d.]+))', r'width="\2"\1', svg, count=1)
        (DOCS / "pictures" / f"diagram-{name_of(text)}-{scheme}.svg").write_text(svg)


if __name__ == "__main__":
    main()
