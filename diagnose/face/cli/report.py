"""The verdict as text for a person at 3 a.m.: the first line is the answer.

Lines are as wide as the terminal, else 80 columns; coloured where wanted. No word is cut: a name
too long for a line is shortened in its middle, and whole with -v.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.output import WIDTH, width_of, wrap
from rankscope.diagnose.face.report import budget_words, words
from rankscope.diagnose.infer.verdict import stack_tree
from rankscope.diagnose.infer.verdict.advice import action_of
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.phrases import readable
from rankscope.diagnose.infer.verdict.reasons import reasons_of
from rankscope.diagnose.infer.verdict.sentence import accusation_of, headline
from rankscope.diagnose.infer.verdict.stack_tree import StackNode
from rankscope.diagnose.text import clean

_STACKS_SHOWN = 16
_INDENT = 12  # of what stands behind the words of a suspect, the longest of which is "ruled out"
# Terms explained at their first appearance.
_EXPLAINED = {
    "own time": "own time (not waiting for others)",
    "time in collectives (the culprit waits least)": "time in collectives (who comes last waits least)",
}
_COLOURS = {"healthy": "32", "inefficient": "33", "fault": "31", "imbalance": "33", "hang": "31;1", "unknown": "33"}


def print_reports(verdicts: Sequence[Verdict], out: TextIO, verbose: bool = False) -> None:
    """Write one report per verdict; with several jobs, first a line with the status of each."""
    width = width_of(out)
    if len(verdicts) > 1:
        said = "; ".join(f"{verdict.word} {clean(verdict.title or verdict.job, 100)}" for verdict in verdicts)
        lines = wrap(f"{len(verdicts)} JOBS  {said}", "        ", width, verbose)
        out.write("\n".join(lines) + "\n\n")
    for number, verdict in enumerate(verdicts):
        if number:
            out.write("\n")
        print_report(verdict, out, verbose)


def print_report(verdict: Verdict, out: TextIO, verbose: bool = False) -> None:
    """Write the report to `out`; coloured on a terminal unless NO_COLOR is set."""
    colour = out.isatty() and not os.environ.get("NO_COLOR")
    for number, line in enumerate(report(verdict, verbose, width_of(out))):
        if number == 0 and colour:
            word, _, rest = line.partition(" ")
            line = f"\033[{_COLOURS.get(verdict.status, '0')}m{word}\033[0m {rest}"  # noqa: PLW2901
        out.write(line + "\n")


def report(verdict: Verdict, verbose: bool = False, width: int = WIDTH) -> Iterator[str]:
    """Yield the lines of the report, each at most `width` columns."""

    def lines(text: str, indent: int) -> list[str]:
        """Wrap a text to the width; further lines are indented."""
        return wrap(text, " " * indent, width, verbose)

    yield from lines(headline(verdict, verbose), 7)
    for number, suspect in enumerate(verdict.suspects, 1):
        if number > 1:
            yield ""
            yield from lines(f"{number}. {accusation_of(suspect, verdict.guessed, True, verbose)}", 3)
        for line in _evidence(suspect, verbose, first=number == 1):
            yield from lines(line, _INDENT + 2)
        yield from lines(_labelled("do", readable(clean(suspect.action, 300))), _INDENT)
    if not verdict.suspects and (action := action_of(verdict)):
        yield from lines(_labelled("do", readable(clean(action, 300))), _INDENT)
    if verdict.stacks is not None:
        yield ""
        yield from stack_lines(verdict.stacks, verbose, width)
    yield ""
    if verdict.budget is not None and verdict.status != "hang":
        yield from lines(f"  time   {budget_words.line_of(verdict.budget)}", 9)
    yield from lines(f"  job    {words.context(verdict, verbose)}", 9)
    # The first note of an unknown verdict is in the headline already.
    notes = verdict.notes[1:] if verdict.status == "unknown" else verdict.notes
    shown = notes if verbose else notes[: budgets.SHOWN]
    for note in shown:
        yield from lines(f"  note   {clean(note.text, 300)}", 9)
    if len(shown) < len(notes):
        yield f"  note   {len(notes) - len(shown)} more with -v"


def stack_lines(tree: StackNode, verbose: bool, width: int, option: str = "-v") -> Iterator[str]:
    """Yield lines with the position of all ranks, branches with fewer ranks first.

    `option`: shows the rest.
    """
    told = list(stack_tree.lines(tree))
    shown = told if verbose else told[:_STACKS_SHOWN]
    for number, (depth, text) in enumerate(shown):
        indent = "  " * min(depth, width // 8)
        yield from wrap(
            f"  {'stacks' if number == 0 else '      '}   {indent}{text}", f"           {indent}  ", width, verbose
        )
    if len(shown) < len(told):
        yield f"           {len(told) - len(shown)} more with {option}"


def _evidence(suspect: Suspect, verbose: bool, first: bool) -> Iterator[str]:
    """Yield the labelled lines on a suspect: because, limit, against, ruled out, sure; a label only at its first line.

    `first`: of the first suspect, whose terms are explained.
    """
    found = reasons_of(suspect, verbose)
    for word, said in (("because", found.because), ("limit", found.limits), ("against", found.against)):
        for number, evidence in enumerate(said):
            told = replace(evidence, measure=_EXPLAINED.get(evidence.measure, evidence.measure)) if first else evidence
            yield _labelled("" if number else word, words.evidence_line(told))
    for number, evidence in enumerate(found.ruled_out):
        yield _labelled("" if number else "ruled out", words.evidence_line(evidence))
    yield _labelled("sure", words.sureness(suspect, verbose))


def _labelled(word: str, text: str) -> str:
    """Format a text after its label, both in columns; '' for a line that continues."""
    return f"  {word:<{_INDENT - 3}} {text}"
