"""A recurrence rule of RFC 5545: its parts checked, with texts that say what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date, datetime

from supervisor.errors import InvalidSchedule
from supervisor.hints import did_you_mean

FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")
WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

#: Part -> the largest number, whether it may be counted from the end, and so be negative.
NUMBERS = {
    "BYMONTH": (12, False),
    "BYMONTHDAY": (31, True),
    "BYYEARDAY": (366, True),
    "BYWEEKNO": (53, True),
    "BYHOUR": (23, False),
    "BYMINUTE": (59, False),
    "BYSECOND": (59, False),
    "BYSETPOS": (366, True),
}
PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *NUMBERS)

FROM_ZERO = ("BYHOUR", "BYMINUTE", "BYSECOND")
MOST = {"INTERVAL": 10_000, "COUNT": 100_000}


@dataclass(frozen=True, slots=True)
class Rule:
    """The parts of a rule that were given; `numbers` are those of the BY... parts, in order.

    weekdays: Monday is 0, with its number in month or year, or None. until: the last date, or the
    last time by the job's clock, or with a zone.
    """

    freq: str
    interval: int = 1
    count: int | None = None
    until: date | datetime | None = None
    week_start: int = 0
    weekdays: tuple[tuple[int, int | None], ...] = ()
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __getitem__(self, part: str) -> tuple[int, ...]:
        return self.numbers.get(part, ())

    @property
    def is_within_days(self) -> bool:
        return self.freq in ("HOURLY", "MINUTELY")

    @property
    def needs_a_start(self) -> str | None:
        """The part that says nothing without a beginning to count from."""
        if self.interval > 1:
            return "INTERVAL"
        return "COUNT" if self.count is not None else None


def parse(text: str) -> Rule:
    """Raises InvalidSchedule."""
    if match := re.search(r"DTSTART|EXDATE|RDATE|EXRULE|\n", text.strip(), re.IGNORECASE):
        instead = {"DTSTART": "'start_at'", "EXDATE": "'exclude'", "RDATE": "a job with 'at'"}
        name = match[0].upper().strip()
        use = f"; for {name} use {instead[name]}" if name in instead else ""
        raise InvalidSchedule(f"{text!r} is more than one rule{use}")
    parts = _split(text)
    rule = Rule(
        freq=_word("FREQ", parts["FREQ"], FREQUENCIES),
        interval=_count("INTERVAL", parts) or 1,
        count=_count("COUNT", parts),
        until=_until(parts["UNTIL"]) if "UNTIL" in parts else None,
        week_start=WEEKDAYS.index(_word("WKST", parts.get("WKST", "MO"), WEEKDAYS)),
        weekdays=weekdays_of(parts["BYDAY"]) if "BYDAY" in parts else (),
        numbers={name: _numbers(name, parts[name]) for name in NUMBERS if name in parts},
    )
    _check_together(rule)
    return rule


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").rstrip(";").split(";"):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise InvalidSchedule(f"{part!r} is not a part such as FREQ=WEEKLY")
        if name not in PARTS:
            hint = did_you_mean(name, PARTS)
            raise InvalidSchedule(f"{name} is not a part of a rule{hint}")
        if name in parts:
            raise InvalidSchedule(f"{name} is given twice")
        parts[name] = value
    if parts.get("FREQ") == "SECONDLY":
        raise InvalidSchedule("FREQ=SECONDLY is not supported; use 'every' (every: 30s)")
    if "FREQ" not in parts:
        raise InvalidSchedule("FREQ is missing; a rule begins with FREQ=DAILY or the like")
    if "COUNT" in parts and "UNTIL" in parts:
        raise InvalidSchedule("COUNT and UNTIL exclude each other")
    return parts


def _word(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        hint = did_you_mean(value, known)
        raise InvalidSchedule(f"{name}: {value!r} is not one of {', '.join(known)}{hint}")
    return value


def _count(name: str, parts: dict[str, str]) -> int | None:
    if name not in parts:
        return None
    value, most = parts[name], MOST[name]
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= most:
        raise InvalidSchedule(f"{name}: {value!r} is not a number from 1 to {most:,}")
    return int(value)


def _numbers(name: str, value: str) -> tuple[int, ...]:
    largest, signed = NUMBERS[name]
    smallest = 0 if name in FROM_ZERO else 1
    found = set()
    for text in value.split(","):
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,3}", text) else largest + 1
        if not smallest <= (abs(number) if signed else number) <= largest:
            also = f" or -{largest} to -1" if signed else ""
            raise InvalidSchedule(
                f"{name}: {text!r} is not a number from {smallest} to {largest}{also}"
            )
        found.add(number)
    return tuple(sorted(found))


def weekdays_of(value: str) -> tuple[tuple[int, int | None], ...]:
    """`MO,2TU,-1FR` -> days from Monday, which is 0, with their numbers. Raises InvalidSchedule."""
    found: dict[tuple[int, int | None], None] = {}
    for text in value.split(","):
        match = re.fullmatch(r"([+-]?[0-9]{1,2})?(MO|TU|WE|TH|FR|SA|SU)", text)
        number = int(match[1]) if match and match[1] else None
        if not match or number == 0 or (number and abs(number) > 53):
            days = ", ".join(WEEKDAYS)
            raise InvalidSchedule(f"BYDAY: {text!r} is not one of {days}, or such as 2TU or -1FR")
        found[WEEKDAYS.index(match[2]), number] = None
    return tuple(found)


def _until(value: str) -> date | datetime:
    form = r"\d{8}(T\d{6}Z?)?"
    try:
        if re.fullmatch(form, value):
            moment = datetime.fromisoformat(value)
            return moment if "T" in value else moment.date()
    except ValueError:
        pass
    raise InvalidSchedule(f"UNTIL: {value!r} is not a date such as 20261231 or 20261231T180000Z")


def _check_together(rule: Rule) -> None:
    """What RFC 5545 does not allow, and the one thing that is not supported."""
    numbered = any(number is not None for _, number in rule.weekdays)
    others = [
        part for part in ("BYDAY", *NUMBERS) if rule[part] or (part == "BYDAY" and rule.weekdays)
    ]
    wrong = {
        "BYWEEKNO goes with FREQ=YEARLY only": rule["BYWEEKNO"] and rule.freq != "YEARLY",
        "BYYEARDAY does not go with DAILY, WEEKLY and MONTHLY": rule["BYYEARDAY"]
        and rule.freq in ("DAILY", "WEEKLY", "MONTHLY"),
        "BYMONTHDAY does not go with WEEKLY": rule["BYMONTHDAY"] and rule.freq == "WEEKLY",
        "BYDAY with a number goes with MONTHLY and YEARLY only": numbered
        and rule.freq not in ("MONTHLY", "YEARLY"),
        "BYDAY with a number does not go with BYWEEKNO": numbered and rule["BYWEEKNO"],
        "BYSETPOS needs another BY... part to choose from": rule["BYSETPOS"] and len(others) == 1,
        "BYSETPOS does not go with HOURLY and MINUTELY": rule["BYSETPOS"] and rule.is_within_days,
        "BYSETPOS goes with one time of the day only": rule["BYSETPOS"]
        and any(len(rule[part]) > 1 for part in FROM_ZERO),
    }
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidSchedule(text)
