"""The verdict as one sentence for readers who do not know the terms: who, what, and what it costs.

The same sentence is the first line on a terminal, in the log of the service, for hooks and in the
JSON (`summary`), there with the code of the cause at its end. The page shows the code elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict, process_text
from rankscope.diagnose.infer.verdict.note import COURSES, EXCUSES
from rankscope.diagnose.infer.verdict.phrases import (
    NAME,
    WHOLE,
    comes_back,
    cost,
    count_of,
    few,
    file_of,
    hosts_of,
    place_of,
    readable,
    who_of,
)
from rankscope.diagnose.text import clean, seconds, short

# Fields of registered sentences: {function|otherwise}, {instance|…}, {process|…} (that uses the
# instance), {place|…} (the instance and the file that uses it). Text in [brackets] is dropped if
# its field is unknown. ^: the sentence names its subject itself.
_FIELD = re.compile(r"\[(?P<before>[^][{}]*)\{(?P<optional>\w+)\}\]|\{(?P<field>\w+)\|(?P<otherwise>[^{}]*)\}")
_OF_MANY = (
    ("{function|it}", "{function|one of them}"), ("it waits", "they wait"), ("it takes", "they take"), ("it may", "they may"),
    ("it does", "they do"), ("process was", "processes were"), ("process has", "processes have"), ("stops it", "stops them"),
    ("holds it", "holds them"), ("its ", "their "),
)  # fmt: skip


def headline(verdict: Verdict, whole: bool = False) -> str:
    """First line for people: a word for the status, and the sentence with the code of the cause.

    `whole`: do not shorten names.
    """
    return f"{verdict.word}  {summary_of(verdict, whole)}"


def summary_of(verdict: Verdict, whole: bool = False) -> str:
    """The sentence on the verdict with the code of the cause at its end, and how many more suspects there are.

    `whole`: do not shorten names.
    """
    return _sentence(verdict, True, whole) + (f"; and {_besides(verdict.suspects)}" if verdict.suspects[1:] else "")


def _besides(suspects: Sequence[Suspect]) -> str:
    """Words on all suspects but the first: '2 more, of which one costs more'."""
    first, *others = suspects
    least_s = (1 + limits.FEW) * first.lost_seconds_per_step
    if first.still or not any(one.lost_seconds_per_step > least_s for one in others):
        return f"{len(others)} more"
    return "1 more, which costs more" if len(others) == 1 else f"{len(others)} more, of which one costs more"


def sentence_of(verdict: Verdict) -> str:
    """Say in one sentence who is slow and what it costs, without the code of the cause.

    Or that no rank is odd, or why that is unknown.
    """
    return _sentence(verdict, False, False)


def _sentence(verdict: Verdict, code: bool, whole: bool) -> str:
    """Say in one sentence who is slow and what it costs, or that no rank is, or why it is unknown.

    `code`: with the code of the cause; `whole`: do not shorten names.
    """
    several = len(verdict.ranks) > 1
    if verdict.suspects:
        said = accusation_of(verdict.suspects[0], verdict.guessed, code, whole)
        nobody = "Nobody stands out, but" if several else "No rank to compare with, but"
        return f"{nobody} {comes_back(verdict)} would come back. {said}" if verdict.status == "inefficient" else said
    count = f"{count_of(verdict)}{hosts_of(verdict)}"
    if verdict.status == "healthy":
        p50 = verdict.step_seconds.p50
        how = f" of {seconds(p50)}" if p50 else ""
        how += ", whose length changed meanwhile" if any(note.code in COURSES for note in verdict.notes) else ""
        excused = any(note.code in EXCUSES for note in verdict.notes)
        nobody = "Nobody is to blame" if excused else "Nobody stands out"
        return f"{nobody if several else 'Nothing wrong was found'}: {count}, {verdict.steps} steps{how}."
    if verdict.status == "hang":
        stand = "make no progress, and none of them stands out" if several else "makes no progress"
        return f"The job stands still: {count} {stand}."
    why = verdict.notes[0].text if verdict.notes else "too little was seen"
    return f"This cannot be judged: {readable(clean(why, budgets.NOTE_MOST))}."


def accusation_of(suspect: Suspect, guessed: tuple[int, ...], code: bool = False, whole: bool = False) -> str:
    """Sentence on a suspect: who, what, and the price.

    'Rank 3 on node-0: augment (train.py:56) takes longer there than on its peers, which costs 0.1 s
    of each 0.3 s step (33 %).'
    `code`: end with the code of the cause. `whole`: do not shorten names.
    """
    template = _template(suspect)
    what = " ".join(_filled(template.removeprefix("^"), suspect, WHOLE if whole else NAME).split())
    who = "" if template.startswith("^") else who_of(suspect, guessed)
    said = f"{who}: {what}" if who else what
    end = f" ({suspect.code})" if code else "."
    return f"{said[:1].upper()}{said[1:]}{_price(suspect, code)}{end}"


def _template(suspect: Suspect) -> str:
    """Return the sentence of the suspect's cause with its fields, else its code.

    In the plural for several ranks, unless it begins with '^' (then it names its subject itself).
    """
    template = suspect.says or suspect.code
    if template.startswith("^"):
        return template
    for one, many in _OF_MANY if len(suspect.ranks) > 1 else ():
        template = template.replace(one, many)
    return template


def _filled(template: str, suspect: Suspect, most: int) -> str:
    """Fill in a template in one pass, so that names chosen by targets are not taken for fields.

    `most`: characters shown of a name.
    """
    fields = {"function": place_of(suspect.function, most) if suspect.function is not None else ""}
    longest = most if most == WHOLE else 80
    instance = readable(short(suspect.instance if most == WHOLE else few(suspect.instance), longest))
    if "{process|" in template and suspect.instances:
        first = suspect.instances[0]
        instance = clean(first.name, longest)
        fields["process"] = clean(process_text(first.comm, first.pid) if first.comm else "", longest)
    file = file_of(suspect.function, most) if suspect.function is not None and suspect.function.file else ""
    called = f" at {file}" if file else ""
    fields |= {"instance": instance, "place": f"{instance}{called}" if instance else ""}

    def fill(found: re.Match[str]) -> str:
        """Replace one field by its value, else by its alternative; drop bracketed text if its field is unknown."""
        said = fields.get(found["optional"] or found["field"], "")
        if found["field"]:
            return said or found["otherwise"]
        return f"{found['before']}{said}" if said else ""

    return _FIELD.sub(fill, template)


def _price(suspect: Suspect, code: bool) -> str:
    """Words on what a suspect costs, to end its sentence: ', which costs 0.1 s of each 0.3 s step (33 %)'.

    For a standstill since when no step has ended. `code`: a code in brackets follows, so the share
    is not in brackets.
    """
    if suspect.still:
        how_long = suspect.lost_seconds_per_step
        return f", and no step has ended for {seconds(how_long)}" if how_long > 0 else ", and no step ends"
    if suspect.lost_percent < 0.05:
        return "; hidden behind the stalls of others for now"
    of_step, share = cost(suspect)
    return f", which costs {of_step}, {share}" if code else f", which costs {of_step} ({share})"


def price_of(verdict: Verdict) -> str:
    """What all suspects cost together, as idle ranks, in words; '' without suspects."""
    ranks = len(verdict.ranks)
    if not verdict.suspects or not ranks:
        return ""
    lost = min(sum(max(suspect.lost_percent, 0.0) for suspect in verdict.suspects), 100.0)
    if any(suspect.still for suspect in verdict.suspects):
        return f"No rank makes progress: {ranks} ranks stand still." if ranks > 1 else "The rank stands still."
    if lost < 0.05:
        return ""
    idle = ranks * lost / 100
    together = "Together the suspects cost" if len(verdict.suspects) > 1 else "That is"
    of = f"{together} as much as {idle:.2g} of {ranks} ranks standing idle all the time"
    return clean(f"{of}: {lost:.0f} % of the job.", budgets.TEXT_MOST)
