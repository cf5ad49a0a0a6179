"""The verdict as one sentence for readers who do not know the terms, with its price."""

from __future__ import annotations

import re

from rankscope.diagnose import budgets
from rankscope.diagnose.face.report.words import WORDS, comes_back, cost, count_of, file_of, place_of, subject
from rankscope.diagnose.infer.causes.causes import sentence
from rankscope.diagnose.infer.verdict.contract import ASLEEP, Suspect, Verdict, process_text
from rankscope.diagnose.text import clean, seconds

# Fields of registered sentences: {function|otherwise}, {instance|…}, {process|…} (that uses the
# instance), {place|…} (the instance and the file that uses it). Text in [brackets] is dropped if
# its field is unknown. ^: the sentence names its subject itself.
_FIELD = re.compile(r"\[(?P<before>[^][{}]*)\{(?P<optional>\w+)\}\]|\{(?P<field>\w+)\|(?P<otherwise>[^{}]*)\}")
_SLEEPS = "{function|its Python code} sleeps"
_OF_MANY = (
    ("{function|it}", "{function|one of them}"), ("it waits", "they wait"), ("it takes", "they take"), ("it may", "they may"),
    ("it does", "they do"), ("process was", "processes were"), ("process has", "processes have"), ("stops it", "stops them"),
    ("holds it", "holds them"), ("its ", "their "),
)  # fmt: skip


def sentence_of(verdict: Verdict) -> str:
    """Who, what and what it costs, in one sentence.

    Or that no rank is odd, or why that is unknown.
    """
    if verdict.suspects:
        said = accusation_of(verdict.suspects[0], verdict.guessed)
        nobody = "Nobody stands out, but" if len(verdict.ranks) > 1 else "No rank to compare with, but"
        return f"{nobody} {comes_back(verdict)} would come back. {said}" if verdict.status == "inefficient" else said
    count = count_of(verdict)
    if verdict.status == "healthy":
        p50 = verdict.step_seconds.p50
        how = f" of {seconds(p50)}" if p50 else ""
        found = "Nobody stands out" if len(verdict.ranks) > 1 else "Nothing wrong was found"
        return f"{found}: {count}, {verdict.steps} steps{how}."
    if verdict.status == "hang":
        return f"The job stands still: {count} make no progress, and none of them stands out."
    return f"This cannot be judged: {clean(verdict.notes[0].text, budgets.NOTE_MOST) if verdict.notes else 'too little was seen'}."


def accusation_of(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    """Sentence on a suspect: who, what, and the price.

    'Rank 3 on node-0: augment (train.py:56) takes longer there than on its peers, which costs 0.1 s
    of each 0.3 s step (33 %).'
    """
    template = _template(suspect)
    what = " ".join(_filled(template.removeprefix("^"), suspect).split())
    who = "" if template.startswith("^") else _who(suspect, guessed)
    whole = f"{who}: {what}" if who else what
    return f"{whole[:1].upper()}{whole[1:]}{_price(suspect)}."


def _who(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    if suspect.scope == "all" and len(suspect.ranks) > 1:
        return "both ranks" if len(suspect.ranks) == 2 else f"all {len(suspect.ranks)} ranks"
    return subject(suspect, guessed)


def _template(suspect: Suspect) -> str:
    template = suspect.says or sentence(suspect.component, suspect.cause, suspect.scope)
    if template.startswith("^"):
        return template
    if suspect.component == "python" and any(evidence.value == ASLEEP for evidence in suspect.evidence):
        template = _SLEEPS
    for one, many in _OF_MANY if len(suspect.ranks) > 1 else ():
        template = template.replace(one, many)
    return template


def _filled(template: str, suspect: Suspect) -> str:
    """Fill in a template in one pass, so that names chosen by targets are not taken for fields."""
    fields = {"function": place_of(suspect.function) if suspect.function is not None else ""}
    instance = clean(suspect.instance, 80)
    if "{process|" in template and suspect.instances:
        first = suspect.instances[0]
        instance = clean(first.name, 80)
        fields["process"] = clean(process_text(first.comm, first.pid) if first.comm else "", 80)
    file = file_of(suspect.function) if suspect.function is not None and suspect.function.file else ""
    fields |= {"instance": instance, "place": f"{instance} ({file})" if instance and file else instance}

    def fill(found: re.Match[str]) -> str:
        said = fields.get(found["optional"] or found["field"], "")
        if found["field"]:
            return said or found["otherwise"]
        return f"{found['before']}{said}" if said else ""

    return _FIELD.sub(fill, template)


def _price(suspect: Suspect) -> str:
    if suspect.still:
        how_long = suspect.lost_seconds_per_step
        return f", and no step has ended for {seconds(how_long)}" if how_long > 0 else ", and no step ends"
    if suspect.lost_percent < 0.05:
        return "; hidden behind the stalls of others for now"
    return f", which costs {cost(suspect)}"


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
    return clean(f"{of}: {lost:.0f} % of the job.", WORDS)
