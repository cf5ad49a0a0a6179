"""Build the content of a report from a fleet and its verdict."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence

import numpy as np

from rankscope.diagnose.face.report.chosen import Chosen, choose
from rankscope.diagnose.face.report.content import Accused, Headline, Proof, Report
from rankscope.diagnose.face.report.sections.budget import spending_of
from rankscope.diagnose.face.report.sections.considered import considered, course_of, unseen_by
from rankscope.diagnose.face.report.sections.counters import counters_of
from rankscope.diagnose.face.report.sections.flame import flames_of
from rankscope.diagnose.face.report.sections.heat import heat_of
from rankscope.diagnose.face.report.sections.standing import standing_of
from rankscope.diagnose.face.report.sections.timeline import timeline_of
from rankscope.diagnose.face.report.words import context, expected_of, measure, sureness
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.still.merged_stacks import merged_stacks
from rankscope.diagnose.infer.verdict.advice import action_of
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.phrases import readable
from rankscope.diagnose.infer.verdict.reasons import is_against
from rankscope.diagnose.infer.verdict.sentence import accusation_of, headline, price_of, sentence_of
from rankscope.diagnose.text import clean

_TONES = {"healthy": "good", "fault": "bad", "hang": "bad"}


def report_of(fleet: Fleet, verdict: Verdict, others: Sequence[Verdict] = ()) -> Report:
    """Build the content of the page on a verdict.

    `others`: verdicts on other jobs in the same windows, shown by their first lines.
    """
    chosen = choose(fleet, verdict)
    still = verdict.status == "hang" or not np.isfinite(fleet.steps.seconds).any()
    return Report(
        title=clean(f"{verdict.status}: {verdict.title or verdict.job}", 120),
        version=_version(),
        headline=_headline(verdict),
        others=tuple(headline(other) for other in others),
        accused=tuple(_accused(suspect, verdict) for suspect in verdict.suspects),
        standing=standing_of(verdict.stacks or merged_stacks(fleet)) if still else (),
        spending=None if verdict.budget is None else spending_of(verdict.budget, _ranks_of(verdict)),
        heat=heat_of(fleet, verdict, chosen),
        timeline=timeline_of(fleet, verdict, chosen),
        flames=flames_of(fleet, chosen),
        counters=counters_of(fleet, verdict, chosen),
        counters_text=_about_counters(fleet, chosen),
        considered=considered(fleet, verdict, chosen),
        course=course_of(verdict),
        unseen=unseen_by(verdict),
    )


def _ranks_of(verdict: Verdict) -> list[int]:
    """Return the numbers of the ranks that are suspects themselves (scope rank)."""
    return [rank for suspect in verdict.suspects if suspect.scope == "rank" for rank in suspect.ranks]


def _version() -> str:
    """Return the version of rankscope, '' if it is not installed."""
    try:
        return importlib.metadata.version("rankscope")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _headline(verdict: Verdict) -> Headline:
    """Build the summary at the top of the page."""
    return Headline(
        status=verdict.word.lower(),
        tone=_TONES.get(verdict.status, "doubt"),
        sentence=sentence_of(verdict),
        price=price_of(verdict),
        action=readable(clean(action_of(verdict), 400)),
        about=context(verdict),
    )


def _accused(suspect: Suspect, verdict: Verdict) -> Accused:
    """Build the part of the page on one suspect; evidence against it comes last."""
    proofs = tuple(
        Proof(
            readable(clean(each.measure)), readable(measure(each.value, each.unit)), expected_of(each), is_against(each)
        )
        for each in sorted(suspect.evidence, key=is_against)
    )
    return Accused(
        sentence=accusation_of(suspect, verdict.guessed),
        code=f"{suspect.component}/{suspect.cause}",
        sure=sureness(suspect, True),
        action=readable(clean(suspect.action, 400)),
        proofs=proofs,
    )


def _about_counters(fleet: Fleet, chosen: Chosen) -> str:
    """Say which counters are shown, and compared with which; '' if there are none."""
    if not len(fleet.counters):
        return ""
    who = clean(chosen.named(fleet, chosen.culprit))
    beside = f"{len(chosen.peers)} peers (their median)" if len(chosen.peers) > 1 else "its peer"
    return f"{who} and its host, beside {beside} and the other hosts" if len(chosen.peers) else f"{who} and its host"
