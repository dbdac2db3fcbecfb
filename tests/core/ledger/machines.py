"""How the ledger's models are put through their rules."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from supervisor.ledger.ledger import Ledger


def run_machine(machine: Any, ledger: Ledger, steps: int, first_seed: int | None = None) -> None:
    """Fails with the shortest sequence of rules after which something is wrong, or the first one
    where Hypothesis' profile has none made shorter.

    machine: its class, which counts in `steps`, and takes `steps_each` with one ledger. first_seed:
    tries the same sequences each time, and fails with the first that shows it.
    """
    machine.steps = 0
    while machine.steps < steps:

        def made() -> Any:
            return machine(ledger)

        run_state_machine_as_test(
            made if first_seed is None else seed(first_seed + machine.steps)(made),
            settings=settings(
                max_examples=max(10, (steps - machine.steps) // machine.steps_each),
                stateful_step_count=machine.steps_each,
                deadline=None,
                report_multiple_bugs=False,
                phases=settings.default.phases if first_seed is None else [Phase.generate],
            ),
        )
