"""Links of the pages to files outside docs/ lead to the repository."""

import re
from pathlib import PurePosixPath
from typing import Any

OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with addresses in place of paths that leave docs/."""
    depth = len(PurePosixPath(page.file.src_uri).parents)

    def address(link: re.Match[str]) -> str:
        ups, path, anchor = link.groups()
        if ups.count("../") < depth:
            return link.group()
        return f"]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor or ''})"

    return OUTSIDE.sub(address, markdown)
