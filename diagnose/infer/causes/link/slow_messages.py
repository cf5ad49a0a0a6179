"""A slow link between two pipeline stages, found by the stays in messages alone (timings).

A pipeline with the work of the others but longer messages is late: its ranks wait less where all
pipelines meet (the gradients), and longer in messages. A slow stage shows in its own time; then no
link is examined.

stay      = mean seconds per step in collectives that are no messages
late(d)   = median over the ranks r of pipeline d of (median over r's peers of stay(·) - stay(r))
lost      = the same of the stage of d that comes last: it decides when the step ends
z(d)      = late(d) / max(robust_sd of late over the other pipelines, 1.4 % of the step); a row of
            ../rows.py
more(r,w) = seconds per step that r stays longer than its peers in messages of the way w:
            activations (forward) or gradients (backward)

Both sides of a slow link run at its pace: stages before it wait for gradients, those after it for
activations. It follows the stage k for which Σ over j <= k of more(j, gradients) + Σ over j > k of
more(j, activations) is largest. Each of these must be 0.3 of late(d), or nothing is reported:
untimed work makes all later stages wait, but none before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER, Hypothesis, common_host
from rankscope.diagnose.infer.causes.rows import Clear, Row, Taken
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.pipelines import message_names
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waits import TRANSFER
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median, nan_median, peers_median, robust_sd_of, trimmed_mean
from rankscope.probes.base.arrays import Floats, Ints

_GRADIENTS = re.compile(r"backward|bwd|grad", re.IGNORECASE)
_ACTIVATIONS = re.compile(r"forward|fwd|activation", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Stays:
    """Seconds per step and rank: where the pipelines meet, and in messages of either way."""

    meeting: Floats
    gradients: Floats
    activations: Floats


def slow_links_of_pipelines(fleet: Fleet, scene: Scene) -> list[Row]:
    """Return rows of network/slow-link, each for the two ranks at the ends of a link.

    Empty where pipelines or the directions of messages are unknown.
    """
    if not fleet.timed or scene.pipelines is None:
        return []
    member = scene.pipelines.member
    if int(member.max()) < 1:
        return []
    stays = _stays(fleet)
    if not stays.gradients.any() or not stays.activations.any():
        return []
    earlier = _less(stays.meeting, scene.roles)
    late = np.array([median(earlier[member == d]) for d in range(int(member.max()) + 1)])
    worked = _more(np.nan_to_num(trimmed_mean(scene.own)), scene.roles)
    floor_s = limits.EFFECT_SHARE * scene.step_s
    found = []
    for pipeline in np.flatnonzero(late >= floor_s):
        others = np.delete(late, pipeline)
        spread = robust_sd_of(others)
        z = float(late[pipeline]) / max(spread, limits.SCALE_FLOOR * scene.step_s)
        ranks = np.flatnonzero(member == pipeline)
        if float(np.max(worked[ranks])) > limits.PART * late[pipeline]:
            continue
        ends = _ends(_in_order(fleet, ranks), stays, scene.roles, float(late[pipeline]))
        if ends is not None:
            # The last stage to finish decides when the step ends.
            last = int(ranks[np.argmin((stays.meeting + earlier)[ranks])])
            late_s = max(float(earlier[last]), float(late[pipeline]))
            told = _hypothesis(fleet, scene, ends, late_s, stays)
            found.append(Row(told, Taken(late_s), Clear(z, looked_at=len(late))))
    return found


def _stays(fleet: Fleet) -> _Stays:
    """Sum each rank's seconds per step in collectives that are no messages, and in messages of either way.

    Sends are left out.
    """
    table, ranks = fleet.patterns, len(fleet.ranks)
    collective = table.kind.codes == table.kind.code("collective")
    stayed = collective & (table.detail.codes != table.detail.code(TRANSFER))
    message = np.isin(table.name.codes, message_names(fleet))
    receives = np.array(["send" not in value.lower() for value in table.name.values], dtype=bool)[table.name.codes]

    def total(words: re.Pattern[str] | None) -> Floats:
        """Return by rank the seconds per step in messages with a name like `words`; None: in what is no message."""
        chosen = stayed & ~message
        if words is not None:
            named = np.array([bool(words.search(value)) for value in table.name.values], dtype=bool)
            chosen = stayed & message & receives & named[table.name.codes]
        return np.bincount(table.rank[chosen], np.nan_to_num(table.per_step_s[chosen]), ranks).astype(np.float64)

    return _Stays(total(None), total(_GRADIENTS), total(_ACTIVATIONS))


def _less(values: Floats, roles: Ints) -> Floats:
    """Return the median of each rank's peers less its own value; 0 where unknown."""
    return np.asarray(np.nan_to_num(peers_median(values[:, None], roles)[:, 0] - values), dtype=np.float64)


def _more(values: Floats, roles: Ints) -> Floats:
    """Return each rank's value less the median of its peers; 0 where unknown."""
    return -_less(values, roles)


def _in_order(fleet: Fleet, ranks: Ints) -> Ints:
    """Sort the ranks of one pipeline from first to last stage, by numbers in role names, else by rank."""

    def place(row: int) -> tuple[tuple[int, ...], int]:
        """Sort key of a rank (row): the numbers in the name of its role, then its own number."""
        return tuple(int(number) for number in re.findall(r"\d{1,9}", fleet.ranks.role[row])), int(
            fleet.ranks.number[row]
        )

    return np.array(sorted(ranks.tolist(), key=place), dtype=np.int64)


def _ends(ranks: Ints, stays: _Stays, roles: Ints, late_s: float) -> tuple[int, int] | None:
    """Return the ranks (rows) at both ends of a pipeline's slow link; None if it is not clear.

    `ranks`: in order of stages; `late_s`: seconds per step that the pipeline is late.
    """
    gradients, activations = _more(stays.gradients, roles)[ranks], _more(stays.activations, roles)[ranks]
    behind = [float(gradients[: k + 1].sum() + activations[k + 1 :].sum()) for k in range(len(ranks) - 1)]
    if not behind:
        return None
    k = int(np.argmax(behind))
    paced = np.concatenate([gradients[: k + 1], activations[k + 1 :]])
    return (int(ranks[k]), int(ranks[k + 1])) if float(paced.min()) >= limits.PART * late_s else None


def _hypothesis(fleet: Fleet, scene: Scene, ends: tuple[int, int], late_s: float, stays: _Stays) -> Hypothesis:
    """Return network/slow-link between two ranks (rows) that costs `late_s` seconds per step.

    `ends`: the rank of the earlier stage, that of the later one.
    """
    before, behind = ends
    peers = int(np.count_nonzero(scene.roles == scene.roles[before])) - 1
    first, second = (int(fleet.ranks.number[row]) for row in ends)

    def stay(row: int, values: Floats) -> tuple[float, float]:
        """Return (the rank's seconds, its peers' median) of these stays."""
        return float(values[row]), float(values[row] + _less(values, scene.roles)[row])

    own = nan_median(scene.own[list(ends)], 1)
    return Hypothesis(
        scope="link",
        component="network",
        cause="slow-link",
        rows=ends,
        lost_s=late_s,
        support=NO_COUNTER,
        evidence=(
            Evidence("steps", "its pipeline comes later than the others to their common collectives, by", late_s, 0.0, "s/step", peers),
            Evidence("steps", f"rank {first} waits for gradients", *stay(before, stays.gradients), "s/step", peers),
            Evidence("steps", f"rank {second} waits for activations", *stay(behind, stays.activations), "s/step", peers),
            Evidence("steps", "own time of the two ranks", float(own.mean()),
                     float(nan_median(peers_median(scene.own, scene.roles)[list(ends)], 1).mean()), "s/step", peers),
        ),
        action=f"All stages of this pipeline run at the pace of the messages between rank {first} and rank {second}: look at the "
        "link, the ports and the route between their hosts.",
        host=common_host(fleet, ends),
        instance=f"rank {first} to rank {second}",
    )  # fmt: skip
