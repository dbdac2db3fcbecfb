"""The schedule file that a verb writes: where to, and how."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from supervisor.cli.common import CommandFailed, json_option, option_group, print_done
from supervisor.errors import REFUSED, SupervisorError

#: Where a schedule file is written to.
to_file = option_group(
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write to FILE instead of standard output.",
    ),
    click.option("--force", is_flag=True, help="Overwrite FILE."),
    json_option,
)


def refuse_to_overwrite(output: Path | None, force: bool) -> None:
    if output is not None and output.exists() and not force:
        raise CommandFailed(f"{output} exists already; --force overwrites it", REFUSED)


def write_file(
    text: str,
    jobs: Sequence[str],
    output: Path,
    verb: str,
    reports: Sequence[str] = (),
    *,
    as_json: bool,
) -> None:
    from supervisor.operate.words import plural

    replace_file(text, output)
    if as_json:
        result = {"name": str(output), "state": "written", "jobs": list(jobs)}
        print_done(verb, [result], reports=list(reports))
    else:
        click.echo(f"{output}: {plural(len(jobs), 'job')}")


def replace_file(text: str, output: Path) -> None:
    """Replaces the file in one step: a beat may be following its directory.

    What a link leads to is replaced, not the link. A device or a pipe is written to.
    """
    try:
        if output.exists() and not output.is_file():
            output.write_text(text, encoding="utf-8")
            return
        file = output.resolve()
        unfinished = file.with_name(f".{file.name}.unfinished")
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise SupervisorError(f"{output}: cannot be written: {error.strerror}") from error
