"""What can be broken in a text: small edits, each with a name that outlives edits elsewhere."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

SWAPPED = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "~=": "==",
    "and": "or",
    "or": "and",
    "true": "false",
    "false": "true",
    "True": "False",
    "False": "True",
    "+": "-",
    "-": "+",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}


@dataclass(frozen=True, slots=True)
class Edit:
    """text[start:end] becomes `new`; `what` says it in words."""

    start: int
    end: int
    new: str
    what: str


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str

    line: str
    """Where the edit begins, without blanks around it."""

    what: str
    edit: Edit

    @property
    def id(self) -> str:
        return f"{self.file} | {self.line} | {self.what}"

    def applied_to(self, text: str) -> str:
        return text[: self.edit.start] + self.edit.new + text[self.edit.end :]


def mutants_of(file: str, text: str) -> list[Mutant]:
    """file: a path that ends in .lua or .py."""
    edits = lua_edits(text) if file.endswith(".lua") else python_edits(text)
    lines = text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    often: Counter[tuple[str, str]] = Counter()
    seen = []
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end, edit.what)):
        line = lines[bisect_right(starts, edit.start) - 1].strip()
        often[line, edit.what] += 1
        number = often[line, edit.what]
        what = edit.what if number == 1 else f"{edit.what} ({number})"
        seen.append(Mutant(file, line, what, edit))
    return seen


# Lua


def lua_edits(text: str) -> Iterator[Edit]:
    code = without_words(text)

    def swapped(pattern: str) -> Iterator[Edit]:
        for match in re.finditer(pattern, code):
            word = match[1]
            new = "~=" if word == "==" else SWAPPED[word]
            yield Edit(match.start(1), match.end(1), new, f"{word} -> {new}")

    yield from swapped(r"(<=|>=|==|~=|<|>)")
    yield from swapped(r"\b(and|or|true|false)\b")
    yield from swapped(r"(?<=[\w)\]}]) ([+-]) ")
    for match in re.finditer(r"\b(?:else)?if (.*?) then\b", code, re.S):
        condition = text[match.start(1) : match.end(1)]
        yield Edit(match.start(1), match.end(1), f"not ({condition})", "condition negated")
    for match in re.finditer(r"\bnot ", code):
        yield Edit(match.start(), match.end(), "", "not removed")
    for match in re.finditer(r" (and|or)\s", code):
        end = end_of_term(code, match.end())
        yield Edit(match.start(), end, "", f"{shortened(text[match.start() : end])} removed")
    for match in re.finditer(r"(?<![\w.\[$#])\d+(?![\w.\]])", code):
        new = str(int(match[0]) + 1)
        yield Edit(match.start(), match.end(), new, f"{match[0]} -> {new}")
    for match in re.finditer(r"redis\.call\('e+',(.*)\)", code):
        for key in re.finditer(r", (?:K\.\w+|slot_key)(?:\([^()]*\))?", match[1]):
            start, end = match.start(1) + key.start(), match.start(1) + key.end()
            yield Edit(start, end, "", f"{shortened(text[start:end])} removed")
    for match in re.finditer(r"\breturn\b[^\n]*?('e+')", code):
        word = text[match.start(1) : match.end(1)]
        yield Edit(match.start(1), match.end(1), "'mutant'", f"{word} -> 'mutant'")
    for start, end in lua_statements(code):
        yield Edit(start, end, "", f"{shortened(text[start:end])} removed")


def without_words(text: str) -> str:
    """As long as the text: `e` for each character of a string, blanks for comments."""

    def blank(match: re.Match[str]) -> str:
        if match[0].startswith("--"):
            return " " * len(match[0])
        return match[0][0] + "e" * (len(match[0]) - 2) + match[0][-1]

    return re.sub(r"--[^\n]*|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"", blank, text)


def end_of_term(code: str, place: int) -> int:
    """Where what stands after `and` or `or` ends."""
    depth = 0
    for match in re.compile(r"[(\[{]|[)\]},;]|\b(?:and|or|then|do|end|else)\b|\n").finditer(
        code, place
    ):
        token = match[0]
        if token in "([{":
            depth += 1
        elif token in ")]}" and depth:
            depth -= 1
        elif not depth:
            return match.start() - (code[match.start() - 1] == " ")
    return len(code)


def lua_statements(code: str) -> Iterator[tuple[int, int]]:
    """Calls, assignments and returns that fill their lines."""
    lines = code.splitlines(keepends=True)
    start, number = 0, 0
    while number < len(lines):
        first, place = lines[number], start
        text = first
        start, number = start + len(first), number + 1
        if not re.match(r"\s*(?!local\b|function\b|if\b|for\b|while\b|end\b)[\w.]+[ (.\[]", first):
            continue
        if re.match(r"\s*(?:and|or|then|do|else|elseif)\b", first):
            continue
        while unbalanced(text) > 0 and number < len(lines):
            text += lines[number]
            start, number = start + len(lines[number]), number + 1
        is_statement = re.match(
            r"\s*(?:return\b.*|[\w.:]+\(.*\)|[\w.\[\]#+ ,]+ = .*)\s*$", text, re.S
        )
        following = lines[number] if number < len(lines) else ""
        goes_on = re.match(r"\s*(?:and|or|then|\.\.|[+*/-])", following)
        if is_statement and not unbalanced(text) and not goes_on and not is_inside(code, place):
            blanks = len(text) - len(text.lstrip())
            yield place + blanks, place + len(text.rstrip())


def unbalanced(code: str) -> int:
    return sum(code.count(opening) for opening in "([{") - sum(map(code.count, ")]}"))


def is_inside(code: str, place: int) -> bool:
    """Whether the place is in the midst of a call or a table."""
    return unbalanced(code[:place]) != 0


# Python


def python_edits(text: str) -> Iterator[Edit]:
    lines = text.splitlines(keepends=True)
    starts = [0, *accumulate(len(line.encode()) for line in lines)]
    data = text.encode()

    def at(line: int, column: int) -> int:
        return len(data[: starts[line - 1] + column].decode())

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            at(node.lineno, node.col_offset),
            at(node.end_lineno or 0, node.end_col_offset or 0),
        )

    def between(left: ast.expr, right: ast.expr) -> Iterator[Edit]:
        start, end = span(left)[1], span(right)[0]
        match = re.search(
            r"<=|>=|==|!=|<|>|\bis not\b|\bnot in\b|\bis\b|\bin\b|\band\b|\bor\b|[+-]",
            text[start:end],
        )
        if match and match[0] in SWAPPED:
            new = SWAPPED[match[0]]
            place = start + match.start()
            yield Edit(place, place + len(match[0]), new, f"{match[0]} -> {new}")

    tree = ast.parse(text)
    decorators = {
        part
        for node in ast.walk(tree)
        for decorator in getattr(node, "decorator_list", ())
        for part in ast.walk(decorator)
    }
    for node in ast.walk(tree):
        if node in decorators:
            continue
        match node:
            case ast.Compare(left=left, comparators=[*others]):
                for one, other in zip([left, *others], others, strict=False):
                    yield from between(one, other)
            case ast.BoolOp(values=values):
                for one, other in pairwise(values):
                    yield from between(one, other)
                    start, end = span(one)[1], span(other)[1]
                    if text[start:end].count("(") == text[start:end].count(")"):
                        yield Edit(start, end, "", f"{shortened(text[start:end])} removed")
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
                yield from between(left, right)
            case ast.UnaryOp(op=ast.Not()):
                start = span(node)[0]
                yield Edit(start, start + len("not "), "", "not removed")
            case ast.Constant(value=bool() as value):
                yield Edit(*span(node), str(not value), f"{value} -> {not value}")
            case ast.Constant(value=int() | float() as value):
                yield Edit(*span(node), str(value + 1), f"{value} -> {value + 1}")
            case ast.Return(value=value) if value and not is_none(value):
                yield Edit(*span(node), "return None", "value not returned")
            case ast.If(test=test) | ast.IfExp(test=test):
                start, end = span(test)
                yield Edit(start, end, f"(not ({text[start:end]}))", "condition negated")
        if is_removable(node):
            start, end = span(node)  # type: ignore[arg-type]
            yield Edit(start, end, "pass", f"{shortened(text[start:end])} removed")


def is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def is_removable(node: ast.AST) -> bool:
    """A call, but not of the log; an assignment to what is there already; what leaves a loop."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return False
        case ast.Expr(value=ast.Call()):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            return True
        case ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
            return True
    return False


def shortened(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else f"{words[:57]}..."
