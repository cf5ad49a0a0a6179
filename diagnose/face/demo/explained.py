"""Follow each part of a verdict, as it is printed, by what it means. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

ANSWER = "answer"  # the first line, which has no label
MEANINGS = {
    ANSWER: "The status, then who, what and how much a step would be shorter by without it; at the end its name, component/cause "
    "(`rankscope causes` lists all). HEALTHY, INEFFICIENT, IMBALANCE, HANG, DEAD and UNKNOWN are the other words.",
    "because": "Why. Peers are the ranks that do the same work; their figure is beside the rank's. All ranks leave a collective "
    "together: the one that arrives last waits least, and the others wait for it.",
    "limit": "A limit that was reached.",
    "against": "What speaks against it.",
    "ruled out": "What would explain it too, and was looked at: it is not so.",
    "sure": "How sure: witnessed (a counter or the kernel shows it), likely, or a guess.",
    "do": "What to do next.",
    "stacks": "Where the ranks are: those that are somewhere else come first.",
    "time": "Where a step's time goes, a mean over all ranks, whoever is to blame.",
    "job": "What was observed: job, ranks, hosts, steps, and when.",
    "note": "What could not be seen, and why.",
}  # fmt: skip
_LABEL = re.compile(r"^ {2}([a-z]+(?: [a-z]+)?) {2,}\S")
_FURTHER = re.compile(r"^\d{1,3}\. ")  # the first line of another suspect
_BAR = "    | "


def parts(lines: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Group the lines of a report by label; a line without one continues the part before it."""
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        label = _LABEL.match(line)
        begins = not found or _FURTHER.match(line) is not None
        name = label[1] if label is not None else ANSWER if begins else found[-1][0]
        if not begins and name == found[-1][0]:
            found[-1][1].append(line)
        else:
            found.append((name, [line]))
    return found


def explained(lines: Sequence[str], width: int) -> Iterator[tuple[str, bool]]:
    """Yield the lines of a report and after each part its meaning, once; with whether a line is an explanation."""
    told: set[str] = set()
    for name, block in parts(lines):
        end = max(number for number, line in enumerate(block, 1) if line.strip())
        yield from ((line, False) for line in block[:end])
        if name in MEANINGS and name not in told:
            told.add(name)
            yield from ((f"{_BAR}{line}", True) for line in wrap(MEANINGS[name], width - len(_BAR)))
        yield from ((line, False) for line in block[end:])
