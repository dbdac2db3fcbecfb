"""What the site adds to the pages: addresses for links that leave docs/, and generated reference.

A mermaid diagram is replaced by its drawing in docs/pictures, because the theme would draw it with
a script from another host. Each picture is shown in the reader's colours. In tables, names in code
may be broken after `_`, `.` and `/`.

A line `::: http-api` becomes the operations of the API's OpenAPI document, `::: schedule-schema`
the keys of the JSON Schema of schedule files.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

from supervisor.catalog.schema import json_schema
from supervisor.web.api import document

OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)(#[^)\s]*)?\)")

MARK = re.compile(r"(\d\.|-) ")

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.S | re.M)

PICTURE = re.compile(r"!\[([^\]]+)\]\(([^)]+/[\w-]+)-light\.png\)")

CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.S)

CODE = re.compile(r"(?<=<code>).*?(?=</code>)", re.S)

Schema = Mapping[str, Any]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with what is generated, and with addresses in place of paths that leave docs/."""
    depth = len(PurePosixPath(page.file.src_uri).parents)

    def drawing(block: re.Match[str]) -> str:
        name = sha256(block[1].encode()).hexdigest()[:8]
        path = f"{'../' * (depth - 1)}pictures/diagram-{name}"
        return "\n".join(f"![Diagram]({path}-{s}.svg#only-{s})" for s in ("light", "dark"))

    def address(link: re.Match[str]) -> str:
        ups, path, anchor = link.groups()
        if ups.count("../") < depth:
            return link.group()
        return f"]({config.repo_url.rstrip('/')}/blob/{config.extra['ref']}/{path}{anchor or ''})"

    for line, made in {"::: http-api": http_api, "::: schedule-schema": schedule_schema}.items():
        if f"\n{line}\n" in markdown:
            markdown = markdown.replace(line, "\n".join(made()))
    markdown = PICTURE.sub(r"![\1](\2-light.png#only-light)![\1](\2-dark.png#only-dark)", markdown)
    return "\n".join(indented(DIAGRAM.sub(drawing, OUTSIDE.sub(address, markdown))))


def on_page_content(html: str, **_: Any) -> str:
    """The page with a place to break each long name in a table."""

    def breakable(code: re.Match[str]) -> str:
        return re.sub(r"([_./])(?=\w)", r"\1<wbr>", code[0])

    return CELL.sub(lambda cell: CODE.sub(breakable, cell[0]), html)


def indented(markdown: str) -> Iterator[str]:
    """What belongs to an item of a list by four columns, as Python's Markdown wants it, where the
    pages have the width of the item's mark, as GitHub does."""
    width, in_fence = 0, False
    for line in markdown.splitlines():
        if line.startswith("```"):
            width, in_fence = 0, not in_fence
        elif not in_fence and (mark := MARK.match(line)):
            width = len(mark[0])
        elif line.strip() and not line.startswith(" " * width):
            width = 0
        elif width and line.strip():
            line = " " * (4 - width) + line
        yield line


def http_api() -> Iterator[str]:
    api = document()
    known = api["components"]["schemas"]
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield f"## {method.upper()} {path}\n\n{operation['summary']}\n"
            if parameters := operation.get("parameters"):
                yield from table(
                    ("parameter", "in", "type", "meaning"),
                    (
                        (f"`{p['name']}`", p["in"], kind(p["schema"], known), p.get("description"))
                        for p in parameters
                    ),
                )
            if body := operation.get("requestBody"):
                schema = body["content"]["application/json"]["schema"]
                yield f"Body: {kind(schema, known)}\n"
                yield from keys(resolved(schema, known), known)
            answers = operation["responses"].items()
            yield from table(
                ("answer", "meaning"), ((code, answer["description"]) for code, answer in answers)
            )


def schedule_schema() -> Iterator[str]:
    known = json_schema()["$defs"]
    for title, name in (("Keys of a job", "Job"), ("Keys of a step", "StepSpec")):
        yield f"## {title}\n"
        yield from keys(known[name], known)


def keys(schema: Schema, known: Schema) -> Iterator[str]:
    properties = schema.get("properties", {})
    if properties:
        yield from table(
            ("key", "type", "default", "meaning"),
            (
                (f"`{name}`", kind(key, known), shown(key.get("default")), key.get("description"))
                for name, key in properties.items()
            ),
        )


def table(heads: tuple[str, ...], rows: Iterator[tuple[str | None, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"
    for row in rows:
        cells = (" ".join((cell or "").split()).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


def resolved(schema: Schema, known: Schema) -> Schema:
    reference = schema.get("$ref", "").rpartition("/")[2]
    return known[reference] if reference else schema


def kind(schema: Schema, known: Schema) -> str:
    """What may stand there, in a few words."""
    found = resolved(schema, known)
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    if "anyOf" in found:
        kinds = [kind(one, known) for one in found["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if found.get("type") == "array":
        return f"list of {kind(found.get('items', {}), known)}"
    return str(found.get("type", "any"))


def shown(default: object) -> str:
    return (
        ""
        if default is None
        else f"`{str(default).lower() if default in (True, False) else default}`"
    )
