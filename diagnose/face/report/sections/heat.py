"""The heat map: each function's share of each rank's critical path, and its excess over the peers.

share(r,f)  = Σ β over the patterns of f on the training thread of r; what its GPU does, by GPU function
              where these are known
above(r,f)  = max(0, Σ seconds per step - median of that over the unsuspected peers of r);
              undefined for waiting
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.face.report.chosen import Chosen
from rankscope.diagnose.face.report.content import Heat, HeatFunction, HeatRank
from rankscope.diagnose.infer.fleet.labels import distinct_rows
from rankscope.diagnose.infer.fleet.model import Fleet, Patterns
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.stats.robust import peers_median
from rankscope.diagnose.text import clean
from rankscope.probes.base.arrays import Floats, Ints

FUNCTIONS_MOST = 24  # readable at once
RANKS_MOST = 10_000  # 24 functions, two measures of 2 bytes, in base64: 1.3 MB
_CANDIDATES = 128
_ODD = 10  # functions shown for their excess over the peers; the others for their share
_LEAST_SHARE = 0.002  # share of the critical path; less is a few samples
_CALLED = ("io", "sync", "gpu")  # kinds whose name needs the caller to be meaningful


def heat_of(fleet: Fleet, verdict: Verdict, chosen: Chosen) -> Heat | None:
    """Build the heat map; None if no function was seen."""
    table = fleet.patterns
    beta = table.share
    rows = _rows(table, beta)
    if not len(rows):
        return None
    function, first = _functions(fleet, rows)
    kept = _heaviest(beta[rows], function, table.rank[rows])
    place = np.full(int(function.max()) + 1, -1)
    place[kept] = np.arange(len(kept))
    inside = place[function] >= 0
    at = (table.rank[rows][inside], place[function[inside]])
    share, per_step = (np.zeros((len(fleet.ranks), len(kept))) for _ in range(2))
    np.add.at(share, at, beta[rows][inside])
    possible = (table.per_step_s >= 0) & (table.per_step_s <= fleet.seconds)
    seconds = np.where(possible, table.per_step_s, np.nan)  # NaN: no steps
    np.add.at(per_step, at, seconds[rows][inside])
    waiting = waits(table)[rows[first[kept]]]
    above = np.maximum(per_step - peers_median(per_step, chosen.roles, ~chosen.accused), 0.0)
    above[:, waiting] = np.nan
    columns = _columns(share, above)
    accused = [_is_accused(fleet, verdict, int(rows[first[kept[each]]])) for each in columns]
    functions = tuple(
        _shown(fleet, int(rows[first[kept[each]]]), bool(waiting[each]), said)
        for each, said in zip(columns, accused, strict=True)
    )
    shown = _ranks(fleet, chosen)
    cells = np.ix_(shown, np.array(columns, dtype=np.int64))
    return Heat(
        functions, tuple(_rank(fleet, chosen, int(row)) for row in shown), np.minimum(share[cells], 1.0),
        above[cells], len(fleet.ranks) - len(shown),
    )  # fmt: skip


def _rows(table: Patterns, beta: Floats) -> Ints:
    """Return the pattern rows of training threads, with GPU functions in place of their sum where these are known.

    `beta`: each row's share of the critical path.
    """
    launched = table.on_gpu("gpu") & (beta > 0)
    whole = (table.kind.codes == table.kind.code("gpu")) & np.isin(table.rank, table.rank[launched])
    training = (table.thread.codes == table.thread.code("training")) & (beta > 0) & ~whole
    return np.flatnonzero(training | launched)


def _functions(fleet: Fleet, rows: Ints) -> tuple[Ints, Ints]:
    """Number the functions of these rows; return the number by row, and the index in `rows` of each function's first."""
    table = fleet.patterns
    kind = table.kind.codes[rows]
    of_caller = np.isin(kind, [table.kind.code(name) for name in _CALLED])
    caller = np.where(of_caller, table.caller.codes[rows], -1)
    found_in = (table.kind.codes[rows] == table.kind.code("python")) | of_caller
    file, line = np.where(found_in, table.file.codes[rows], -1), np.where(found_in, table.line[rows], 0)
    number = distinct_rows((kind, table.name.codes[rows], file, line, caller))
    return number, np.unique(number, return_index=True)[1]


def _heaviest(beta: Floats, function: Ints, rank: Ints) -> Ints:
    """Return the functions with the largest share of any rank's critical path, heaviest first.

    By row: `beta`: the share, `function`: its number, `rank`.
    """
    count = int(function.max()) + 1
    pairs, which = np.unique(rank * count + function, return_inverse=True)
    of_pair = np.bincount(which.reshape(-1), beta)
    most = np.zeros(count)
    np.maximum.at(most, pairs % count, of_pair)
    order: Ints = np.argsort(-most, kind="stable")[:_CANDIDATES]
    kept: Ints = order[most[order] >= min(_LEAST_SHARE, most.max())]
    return kept


def _columns(share: Floats, above: Floats) -> list[int]:
    """Select the functions to show: those most above the peers, and the heaviest; sorted by share.

    Both arrays: ranks x functions.
    """
    odd = np.where(np.isnan(above), 0.0, above).max(axis=0)
    chosen = [int(each) for each in np.argsort(-odd, kind="stable")[:_ODD] if odd[each] > 0]
    mean = share.mean(axis=0)
    heavy = [int(each) for each in np.argsort(-mean, kind="stable") if int(each) not in chosen]
    return sorted([*chosen, *heavy][:FUNCTIONS_MOST], key=lambda each: -mean[each])


def _is_accused(fleet: Fleet, verdict: Verdict, row: int) -> bool:
    """Tell whether the function of a pattern row is that of a suspect."""
    table = fleet.patterns
    name, file = table.name.at(row), table.file.at(row)
    return any(
        suspect.function is not None and (suspect.function.name, suspect.function.file) == (name, file)
        for suspect in verdict.suspects
    )


def _shown(fleet: Fleet, row: int, waits: bool, accused: bool) -> HeatFunction:
    """Build a row of the heat map: the function's name and place for people."""
    table = fleet.patterns
    kind, name, caller = table.kind.at(row), table.name.at(row), table.caller.at(row)
    file, line = table.file.at(row), int(table.line[row])
    if kind in _CALLED and caller:
        name = f"{name} in {caller}"
    elif kind == "sched":
        name = "waits for a CPU" if name == "ready" else name
    place = f"{file.rpartition('/')[2]}:{line}" if file and kind in ("python", *_CALLED) else ""
    return HeatFunction(clean(name), clean(place), clean(kind, 20), waits, accused)


def _ranks(fleet: Fleet, chosen: Chosen) -> Ints:
    """Select the ranks to show: all, or if too many the suspects and those farthest from their peers."""
    everyone = np.arange(len(fleet.ranks))
    if len(everyone) <= RANKS_MOST:
        return everyone
    above = np.where(np.isfinite(chosen.above_s), chosen.above_s, -np.inf)
    order = np.lexsort((-above, ~chosen.accused))
    return np.sort(order[:RANKS_MOST])


def _rank(fleet: Fleet, chosen: Chosen, row: int) -> HeatRank:
    """Build a column of the heat map: a rank with host and role ('group 1' without a name)."""
    role = fleet.ranks.role[row] or f"group {int(chosen.roles[row]) + 1}"
    return HeatRank(
        int(fleet.ranks.number[row]), clean(fleet.ranks.host[row], 60), clean(role, 60), bool(chosen.accused[row])
    )
