from __future__ import annotations

import click

VERBS: tuple[click.Command, ...] = ()
