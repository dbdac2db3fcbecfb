"""The arguments of an attempt: secrets in place of references, and what is not to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from supervisor.guard.delivery import Delivery
from supervisor.job.run import Reference
from supervisor.job.run_ids import StepId
from supervisor.job.secrets import (
    MASK,
    ArgumentPath,
    has_references,
    hidden_in,
    put,
    resolved,
    texts_in,
    without_hidden,
)


class Arguments:
    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        #: Where they have references of a schedule file, as the ledger says.
        self.references: Sequence[Reference] = ()
        #: Each text that has a reference, and the secret that it became -> the text.
        self.written: dict[str, str] = {}
        #: Each secret and each masked value -> what is shown in its place.
        self.hidden: dict[str, str] = {}

    def with_secrets(self, args: Any, kwargs: Any, environ: Mapping[str, str]) -> tuple[Any, Any]:
        """The arguments with secrets in place of references. Raises SecretMissing."""
        given = deepcopy({"args": list(args), "kwargs": dict(kwargs)})
        for path, text in list(texts_in(given)):
            if self._is_written(path) and has_references(text):
                secret = resolved(text, environ, self.hidden)
                self.written |= {text: text, **({secret: text} if secret else {})}
                put(given, path, secret)
        return given["args"], given["kwargs"]

    def _is_written(self, path: ArgumentPath) -> bool:
        """Whether the value at this path of the arguments comes from the schedule file."""
        if [*path] in self.references:
            return True
        step = StepId.of(self._delivery.run_id)
        # The item of a batch is data.
        is_item = path[:2] == ("args", 0) and step is not None and step.item is not None
        return path[0] in self.references and not is_item

    def hide(self, *arguments: Any) -> None:
        """Also keeps the arguments that the job's `mask` hides out of its log."""
        if mask := self._delivery.mask:
            self.hidden |= dict.fromkeys(hidden_in(mask, arguments), MASK)

    def shown(self, text: str) -> str:
        """A text from the job's code, without what is hidden."""
        return without_hidden(text, self.hidden) if self.hidden else text
