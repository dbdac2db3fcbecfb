from __future__ import annotations

from typing import Any

from supervisor.job.changes import Changes, Edit, difference, edits
from supervisor.job.spec import JobSpec


def spec(name: str = "job", **keys: Any) -> JobSpec:
    return JobSpec.model_validate({"name": name, "task": "t", "every": "5m", **keys})


def jobs(*specs: JobSpec) -> dict[str, JobSpec]:
    return {each.name: each for each in specs}


def test_a_difference_names_what_was_added_changed_and_removed() -> None:
    loaded = jobs(spec("a"), spec("b"), spec("c"))
    specs = jobs(spec("b"), spec("c", every="6m"), spec("d"))
    assert difference(loaded, specs) == Changes(("d",), ("c",), ("a",), unchanged=1)


def test_an_edit_has_the_value_before_and_after_as_a_file_would_say_it() -> None:
    before = spec(overlap="queue_one", kwargs={"a": 1}, time_limit="10m")
    after = spec(every="7m", kwargs={"a": 2}, queue="slow")
    assert edits(before, after) == (
        Edit("every", "5m", "7m"),
        Edit("kwargs", {"a": 1}, {"a": 2}),
        Edit("queue", None, "slow"),
        Edit("overlap", "queue_one", "skip"),
        Edit("time_limit", "10m", None),
    )


def test_what_was_spelled_out_and_what_is_the_default_are_the_same() -> None:
    assert edits(spec(), spec(overlap="skip", timezone="UTC")) == ()


def test_edited_steps_are_told_step_by_step() -> None:
    def with_steps(*steps: dict[str, Any]) -> JobSpec:
        return spec(task=None, steps=steps)

    a, b, c = ({"task": f"proj.{name}", "priority": 1} for name in "abc")
    before, after = with_steps(a, b), with_steps({**a, "priority": 2, "queue": "q"}, c)
    assert edits(before, after) == (
        Edit("steps.a.priority", 1, 2),
        Edit("steps.a.queue", None, "q"),
        Edit("steps.b", b, None),
        Edit("steps.c", None, c),
    )
    assert edits(with_steps(a, b), with_steps(b, a)) == (Edit("steps", ["a", "b"], ["b", "a"]),)
