"""The long description of the package: README.md with addresses in place of paths.

PyPI shows it on a page of its own, where a path of this repository leads nowhere. The addresses
are those of the version's own tag, below `Source` in pyproject.toml.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: `](docs/README.md#tutorial)`, `src="docs/pictures/page-light.png"`, `srcset="..."`.
PATH = re.compile(r"(?P<before>\]\(|\bsrc=\"|\bsrcset=\")(?!https?:|#)(?P<path>[^)\s\"]+)")


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text("utf-8")
        whole = with_addresses(text, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": whole}


def with_addresses(text: str, repository: str, tag: str) -> str:
    def address(link: re.Match[str]) -> str:
        view = "blob" if link["before"] == "](" else "raw"  # a picture itself, not a page about it
        return f"{link['before']}{repository.rstrip('/')}/{view}/{tag}/{link['path']}"

    return PATH.sub(address, text)
