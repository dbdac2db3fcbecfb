"""What `make mutants` breaks, and what it leaves be."""

from __future__ import annotations

from tools.mutants.__main__ import ROOT, all_mutants, equivalent, stale
from tools.mutants.judges import JUDGES
from tools.mutants.mutants import mutants_of

LUA = """\
-- a comment that says < and not
if count <= most and is_free(lock) then
  redis.call('ZADD', key, now + 5, id)
end
return 'start'
"""

PYTHON = """\
@dataclass(frozen=True)
class Full(Exception):
    pass

def decide(running, most):
    if running < most and running is not None:
        record(running)
        log.info("not < this")
        return True
    raise Full
"""


def test_lua_is_broken_outside_of_comments_and_words() -> None:
    assert {mutant.what for mutant in mutants_of("a.lua", LUA)} == {
        *("<= -> <", "and -> or", "and is_free(lock) removed", "condition negated"),
        *("+ -> -", "5 -> 6", "redis.call('ZADD', key, now + 5, id) removed"),
        *("'start' -> 'mutant'", "return 'start' removed"),
    }


def test_python_is_broken_outside_of_words_and_logs() -> None:
    assert {mutant.what for mutant in mutants_of("a.py", PYTHON)} == {
        *("< -> <=", "and -> or", "and running is not None removed", "condition negated"),
        *("is not -> is", "record(running) removed", "True -> False", "value not returned"),
        "raise Full removed",
    }


def test_each_mutant_differs_and_has_a_name_of_its_own() -> None:
    found = all_mutants()
    assert len({mutant.id for mutant in found}) == len(found) > 1000
    texts = {mutant.file: (ROOT / mutant.file).read_text() for mutant in found}
    assert [m.id for m in found if m.applied_to(texts[m.file]) == texts[m.file]] == []


def test_every_mutant_that_is_called_equivalent_exists_and_says_why() -> None:
    reasons = equivalent()
    assert stale(reasons, all_mutants()) == []
    assert all(reasons.values())


def test_every_file_of_tests_that_judges_is_there() -> None:
    tests = {test for tests in JUDGES.values() for test in tests}
    assert {test for test in tests if not (ROOT / test).exists()} == set()
