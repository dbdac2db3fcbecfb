"""A step's arguments that nobody gave, filled by their names from the params of its run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any


@cache
def parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of those that may be given by name, and of those given by position, in order."""
    by_position, by_name = [], []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            by_position.append("")
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            by_position.append(parameter.name)
            by_name.append(parameter.name)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            by_name.append(parameter.name)
    return tuple(by_name), tuple(by_position)


def filled(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """The keyword arguments, and with them each param that the function has a name for."""
    by_name, by_position = parameters(function)
    given = {*by_position[: len(args)], *kwargs}
    # `params` is asked only for what is lacking: to look at it costs a question to the ledger.
    lacking = [name for name in by_name if name not in given]
    return {**kwargs, **{name: params[name] for name in lacking if name in params}}
