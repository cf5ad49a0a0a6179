"""What no sentence of a verdict may contain: an empty field, an impossible number, a name from inside the program."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankscope.diagnose import limits
from rankscope.observer.window.counter_names import COUNTER_NAMES

_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_UNIT = r"(?:m?s(?:/step)?|%|bytes|events|pages|share|x|[kMGT]?B/s|[kMGT]?Hz|CPUs|ranks|steps)"
_EMPTY = {
    "two blanks: a field between them is empty": r"\S {2,}\S",
    "a place without a file": r"\(:|(?<![\w\])\"']):0\b",
    "empty brackets": r"(?<!\w)(?:\(\s*\)|\[\s*\])|``|''|\"\"",
    "a preposition without its noun": r"\b(?:of|at|with)(?: ?[.,;)]| \(|\s*$)|\bon(?: \(|\s*$)",
    "punctuation after a blank": r" [,;:.](?:\s|$)",
    "a value that is not known": r"(?<![\w.])(?:None|nan|NaN|-?inf)(?![\w.(])",
    "a field of a template": r"\{\w+[|}]",
    "nothing after the colon": r":\s*$",
}
_FAMILIES = "|".join({name.partition(".")[0] for name in COUNTER_NAMES})
_LIKEWISE = re.findall(rf"\b(?:{_FAMILIES})\.[a-z_]+(?:\.[a-z_]+)*", " ".join(COUNTER_NAMES.values()))
_COUNTER = re.compile(r"(?<![\w./])(?:" + "|".join(map(re.escape, {*COUNTER_NAMES, *_LIKEWISE})) + r")(?![\w.])")


# Of a price: what it is said of stands before it with "which", or is its subject alone.
_VERBS = "takes?|waits?|moves?|holds?|stops?|sleeps?|runs?|has|have|is|are|was|were|does|do|computes?|became|comes?|loses?|uses?|may"
_TWO_VERBS = re.compile(rf"\b(?:{_VERBS})\b[^,;:.()]*(?<!which) costs? (?=\d)|\bcosts? \d[^,;.]* costs? \d")


def unsound(text: str) -> list[str]:
    """Return why a reader would stumble over this text; empty for a sound one."""
    return [*_reasons(text)]


def _reasons(text: str) -> Iterator[str]:
    yield from (reason for reason, pattern in _EMPTY.items() if re.search(pattern, text))
    if re.search(rf"(?<![\w)\].])[-−]{_NUMBER} ?{_UNIT}(?!\w)", text):
        yield "a negative measure"
    if any(_of(number) > 100 for number in re.findall(rf"({_NUMBER}) ?%", text)):
        yield "a share above 100 %"
    if any(_of(number) > 1 for number in re.findall(rf"({_NUMBER}) share\b", text)):
        yield "a share above 1"
    for still in re.findall(rf"no (?:progress|step has ended) for ({_NUMBER} m?s)\b", text):
        if still.endswith("ms") or _of(still.removesuffix(" s")) < limits.STALL_SECONDS:
            yield "no progress, for less than a hang lasts"
    if _TWO_VERBS.search(text):
        yield "two verbs in one clause"
    yield from (f"the counter name {name}" for name in dict.fromkeys(_COUNTER.findall(text)))


def _of(number: str) -> float:
    return float(number.replace(",", ""))
