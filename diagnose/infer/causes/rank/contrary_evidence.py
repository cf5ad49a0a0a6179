"""Evidence against a suspect: shown with the evidence for it, and subtracted from its score.

rival       another component would explain a part of the same excess: support · (1 + first/(first +
            rival)) / 2, of the explained seconds
not shown   a part of the excess is in no function of the rank (the score counts it already)
no counter  the component has counters and none moved (its support is lower already)
not always  steps in which the rank was no slower than its peers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.model.excess import Differences
from rankscope.diagnose.infer.verdict.contract import AGAINST, Evidence
from rankscope.diagnose.infer.verdict.phrases import NAME
from rankscope.diagnose.text import short

_COUNTED = ("gpu", "nvlink", "pcie", "nic", "network")


def _counters(component: str) -> str:
    """Return the word for a component's counters in a sentence, such as 'GPU' or 'network card's'."""
    return {"gpu": "GPU", "nvlink": "NVLink", "pcie": "PCIe", "nic": "network card's"}.get(component, component)


def _instead(rival: Hypothesis) -> str:
    """Return words that name another hypothesis as a possible cause, with its function if it has one."""
    inside = f" (in {short(rival.function.name, NAME)})" if rival.function is not None else ""
    return f"it could also be {rival.component}/{rival.cause}, which explains{inside}"


def weighed(
    case: Case, charge: Hypothesis, others: Sequence[Hypothesis], found: Differences, whole_s: float
) -> Hypothesis:
    """Return the hypothesis with the evidence against it, and with less support where another one is a rival.

    `others`: other hypotheses on the rank, strongest first. `found`: all ranks compared with their
        peers. `whole_s`: the rank's excess, seconds per step.
    """
    against = []
    rival = next((each for each in others if each.component not in (charge.component, "workload")), None)
    support = charge.support
    if rival is not None and rival.lost_s >= limits.LARGE_SHARE * charge.lost_s:
        against.append(
            Evidence(f"{AGAINST}functions", _instead(rival), rival.lost_s,
                     None, "s/step")
        )  # fmt: skip
        support *= 0.5 + 0.5 * charge.lost_s / (charge.lost_s + rival.lost_s)
    hidden = whole_s - charge.lost_s - (rival.lost_s if rival is not None else 0.0)
    if hidden >= limits.LARGE_SHARE * whole_s and case.functions:
        against.append(Evidence(f"{AGAINST}steps", "excess that this does not explain", hidden, None, "s/step"))
    if charge.component in _COUNTED and charge.support <= NO_COUNTER and not case.fleet.timed:
        against.append(
            Evidence(
                f"{AGAINST}counters",
                f"no {_counters(charge.component)} counter says why",
                "they are as on its peers, or none was read",
                None,
                "",
            )
        )
    seldom = 1 - float(found.slower_share[case.rank])
    if seldom >= limits.LARGE_SHARE:
        against.append(
            Evidence(f"{AGAINST}steps", "steps in which it is no slower than its peers", 100 * seldom, None, "%")
        )
    return replace(charge, support=support, evidence=(*charge.evidence, *against))
