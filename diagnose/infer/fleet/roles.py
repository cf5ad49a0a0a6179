"""Roles: which ranks are peers.

The job's own roles if given; else ranks with equal functions, messages and bytes. A group of ranks
that differs from all others, and for which the others wait, is either the same program on a slow
path (then it joins its peers) or other work by design (then it is a role of its own):

own, wait    of a group: median over its ranks of their median own time, and of their median collective wait
awaited      own exceeds the others' by the effect floor; the others wait longer by at least half of that;
             and the group works at the same time: its wait is shorter than half of the others' least own
             time. (A learner that works when its actors have finished waits while they act.)
same         a tenth of each other rank's work is on stacks that the group has too: a step of the same
             program that takes another path (a fallback, a compiler, a check) shares the rest of it, a
             learner shares nothing with its actors
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.labels import distinct_texts
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.pipelines import message_names
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.stats.robust import nan_median
from rankscope.observer.window.store.summary import MUCH
from rankscope.probes.base.arrays import Bools, Floats, Ints

_ALIKE = 0.3  # Jaccard similarity of the functions of one role


def roles(fleet: Fleet) -> Ints:
    """Role code by rank: the given role, else ranks that run the same functions.

    Function sets (Python and collective functions with beta >= 2 %) are merged while their Jaccard
    similarity with the largest set of a role is at least 0.3; so are roles with the same functions
    in other proportions. A role of one rank has no peers and joins the largest. The rest is split
    by messages per step and bytes per collective (pipeline stages run the same code), and by
    mutually exclusive work (`_by_own_functions`), except for ranks of the same program that all
    others wait for (`rejoined`).

    In timings (--steps) every call is known, so roles follow from the collectives and messages of
    each rank. Ranks on hosts without GPU data (no NVML) are peers only of each other: their own
    time is measured differently.
    """
    found, unseen = _same_work(fleet), blind(fleet)
    return (
        np.asarray(np.unique(2 * found + unseen, return_inverse=True)[1].reshape(-1), dtype=np.int64)
        if unseen.any()
        else found
    )


def blind(fleet: Fleet) -> Bools:
    """Mark ranks on hosts where no rank shows GPU activity, while all ranks of another host do."""
    table = fleet.patterns
    rows = (table.kind.codes == table.kind.code("gpu")) & (table.thread.codes == table.thread.code("training"))
    seen = np.zeros(len(fleet.ranks), dtype=bool)
    seen[table.rank[rows & (table.beta > 0)]] = True
    if fleet.timed or not seen.any() or seen.all():
        return np.zeros(len(seen), dtype=bool)
    host = distinct_texts(fleet.ranks.observed_on)[1]
    share = np.bincount(host, seen) / np.bincount(host)
    none: Bools = (share == 0)[host]
    return none if (share == 1).any() else np.zeros(len(seen), dtype=bool)


def _same_work(fleet: Fleet) -> Ints:
    """Role code by rank, ignoring which hosts lack GPU data: the given roles, else by what the ranks run.

    All 0 if nothing is known of their functions.
    """
    said = np.zeros(len(fleet.ranks), dtype=np.int64)
    if any(fleet.ranks.role):
        return distinct_texts(fleet.ranks.role)[1]
    if fleet.timed:
        return _by_collectives(fleet)
    share = _by_function(fleet)
    if share is None:
        return said
    sets = share >= MUCH
    first, inverse, counts = _distinct(sets)
    found = _same_functions(share, alike(sets[first], counts)[inverse])
    sizes = np.bincount(found)
    found = _by_volumes(fleet, np.where(sizes[found] < 2, int(np.argmax(sizes)), found))
    return rejoined(fleet, found, _by_own_functions(fleet, found, mostly=_passes_messages(fleet)))


def alike(sets: Bools, counts: Ints, has: Bools | None = None) -> Ints:
    """Number each set (row), merged with a more frequent one if their Jaccard similarity is >= 0.3.

    `counts`: frequency of each set. `has`: members counted as common where both sets have them;
    None: `sets`.
    """
    has = sets if has is None else has

    def joins(leader: int, others: Ints) -> Bools:
        """Mark the sets that are similar enough to the leader's."""
        either = sets[others] | sets[leader]
        members = either.sum(axis=1)
        common = (either & has[others] & has[leader]).sum(axis=1)
        return np.asarray((members == 0) | (common / np.maximum(members, 1) >= _ALIKE), dtype=np.bool_)

    order = np.argsort(-counts)
    code = np.empty(len(sets), dtype=np.int64)
    code[order] = _led(order, joins)
    return code


def _led(order: Ints, joins: Callable[[int, Ints], Bools]) -> Ints:
    """Group entries: return, for each place in `order`, the number of the first leader that it joins.

    `order`: entries, those that lead first. An entry that joins none becomes the next leader. After
    budgets.EXAMINED leaders each remaining entry gets a number of its own: a real job has few
    roles. `joins(leader, others)`: which of the others join.
    """
    code = np.empty(len(order), dtype=np.int64)
    left = np.arange(len(order))
    for leader in range(budgets.EXAMINED):
        if not len(left):
            return code
        first, rest = left[0], left[1:]
        same = joins(int(order[first]), order[rest])
        code[first], code[rest[same]] = leader, leader
        left = rest[~same]
    code[left] = budgets.EXAMINED + np.arange(len(left))
    return code


def _same_functions(share: Floats, found: Ints) -> Ints:
    """Merge roles that have the same functions in other proportions; return the role code by rank.

    Of two slow ranks, say, the peers show little but waiting. Compare the functions with beta >= 2
    % in either of two roles; those are common that both have at all. A role has a function if half
    of its ranks do. `share`: beta, ranks x functions; `found`: role code by rank.
    """
    sizes = np.bincount(found)
    if len(sizes) < 2:
        return found
    much, any_of = (
        np.stack([has[found == role].mean(axis=0) >= limits.HOLDS_LEAST for role in range(len(sizes))])
        for has in (share >= MUCH, share > 0)
    )
    return np.asarray(alike(much, sizes, any_of)[found], dtype=np.int64)


def _distinct(sets: Bools) -> tuple[Ints, Ints, Ints]:
    """Distinct rows of a boolean matrix, in rising order.

    Returns the first row of each, the index of each row's match, and the counts. Faster than
    np.unique over axis 0, since rows are compared as bit strings.
    """
    packed = np.packbits(sets, axis=1)
    _, first, which, count = np.unique(
        packed.view(f"S{packed.shape[1]}")[:, 0], return_index=True, return_inverse=True, return_counts=True
    )
    return first.astype(np.int64), which.reshape(-1).astype(np.int64), count.astype(np.int64)


def _passes_messages(fleet: Fleet) -> bool:
    """Whether any collective of the job is a point-to-point message (send, recv)."""
    table = fleet.patterns
    collective = table.kind.codes == table.kind.code("collective")
    return bool(np.isin(table.name.codes[collective], message_names(fleet)).any())


def _by_own_functions(fleet: Fleet, found: Ints, mostly: bool = False) -> Ints:
    """Split roles by mutually exclusive work, such as a learner and its actors.

    Roles of one rank are allowed. own(r, f) = sum of β of the rank's python and io with f anywhere
    on the stack. Ranks a and b do different work if own(a, f) >= 2 % and own(b, f) = 0 for some f,
    and the other way round for another f: a slow function is missing on the peers too, but its rank
    also does what they do. Each rank joins the first leader from which it does not differ.
    `mostly`: f must hold at least half of the rank's work. So pipeline stages, which begin and end
    with functions of their own, stay together; a parameter server and its workers do not.
    """
    own = _inclusive(fleet)
    if own is None:
        return found
    least = np.maximum(MUCH, own.max(axis=1, keepdims=True) / 2) if mostly else MUCH
    much, never = own >= least, own <= 0
    marks = np.concatenate([much, never], axis=1)
    first, inverse, _ = _distinct(marks)
    kinds, width = marks[first], own.shape[1]

    def joins(leader: int, others: Ints) -> Bools:
        """Mark the kinds of ranks whose work does not differ from the leader's by mutually exclusive functions."""
        a, not_a, theirs = kinds[leader, :width], kinds[leader, width:], kinds[others]
        differ = (theirs[:, width:] & a).any(axis=1) & (theirs[:, :width] & not_a).any(axis=1)
        return np.asarray(~differ, dtype=np.bool_)

    result: Ints = found.copy()
    following = int(found.max()) + 1
    for role in np.unique(found):
        members = np.flatnonzero(found == role)
        here, of_member = np.unique(inverse[members], return_inverse=True)
        code = _led(here, joins)
        if (several := int(code.max(initial=-1)) + 1) > 1:
            result[members] = following + code[of_member.reshape(-1)]
            following += several
    return result


def _inclusive(fleet: Fleet) -> Floats | None:
    """Ranks x frames: share of the window with the frame on the working training thread's stack.

    None where some rank has no stacks, for two ranks or fewer, or if there are too many stacks.
    """
    table, ranks = fleet.patterns, len(fleet.ranks)
    rows = table.thread.codes == table.thread.code("training")
    rows &= np.isin(table.kind.codes, [table.kind.code("python"), table.kind.code("io")]) & (table.stack.codes >= 0)
    places = np.flatnonzero(rows)
    stacks, stack = distinct(table.stack.codes[places])
    if (
        len(stacks) == 0
        or ranks <= 2  # two different ranks would have no peers
        or ranks * max(len(table.stack.frames), len(stacks)) > budgets.PARTS_MOST
        or len(stacks) * len(table.stack.frames) > budgets.CELLS_MOST
    ):
        return None
    # Shares by rank and stack, and frames by stack.
    shares = np.zeros((ranks, len(stacks)))
    np.add.at(shares, (table.rank[places], stack.reshape(-1)), table.beta[places])
    on = np.zeros((len(stacks), len(table.stack.frames)))
    number, node = np.arange(len(stacks)), stacks
    while len(node):  # all stacks at once, one frame each
        on[number, table.stack.frame[node]] = 1.0
        node = table.stack.parent[node]
        number, node = number[node >= 0], node[node >= 0]
    if ((shares > 0).sum(axis=1) == 0).any():  # for a rank without stacks nothing is foreign
        return None
    return np.asarray(shares @ on, dtype=np.float64)


def _by_volumes(fleet: Fleet, found: Ints) -> Ints:
    """Split roles by what their ranks communicate: messages per step, bytes per step in each
    collective.

    Values of a column form one group as long as the next larger is less than twice as large, so
    that no fixed edge separates equal ranks. A role is split only if each part has at least two
    ranks, which thus have peers."""
    table, ranks = fleet.patterns, len(fleet.ranks)
    rows = np.flatnonzero(
        (table.kind.codes == table.kind.code("collective")) & (table.thread.codes == table.thread.code("training"))
    )
    if len(rows) == 0:
        return found
    steps = fleet.steps.of_each
    messages = set(message_names(fleet).tolist())
    columns = []
    for name in np.unique(table.name.codes[rows])[: budgets.EXAMINED]:
        mine = rows[table.name.codes[rows] == name]
        if int(name) in messages:
            columns.append(_groups(np.bincount(table.rank[mine], table.count[mine], ranks) / steps, 0.5))
        elif table.bytes is not None:
            columns.append(_groups(np.bincount(table.rank[mine], table.bytes[mine], ranks) / steps, 1024.0))
    if not columns:
        return found
    parts = np.unique(np.stack([found, *columns], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    result: Ints = found.copy()
    following = int(found.max()) + 1
    for role in np.unique(found):
        members = np.flatnonzero(found == role)
        inside, part, sizes = np.unique(parts[members], return_inverse=True, return_counts=True)
        if len(inside) > 1 and sizes.min() >= 2:
            result[members] = following + part.reshape(-1)
            following += len(inside)
    return result


def _groups(values: Floats, least: float) -> Ints:
    """Return a group number by value, from 1 in rising order; 0 for values below `least`.

    A new group begins where a value is at least twice the next smaller one.
    """
    order = np.argsort(values, kind="stable")
    ordered = np.maximum(values[order], least)
    group = np.cumsum(np.concatenate(([0], (ordered[1:] >= limits.CONCENTRATED * ordered[:-1]).astype(np.int64))))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = group + 1
    result[values < least] = 0
    return result


def _by_function(fleet: Fleet) -> Floats | None:
    """Ranks x functions (Python and collectives): beta on the training thread.

    None where there are none.
    """
    table = fleet.patterns
    kinds = [table.kind.code("python"), table.kind.code("collective")]
    rows = np.flatnonzero(np.isin(table.kind.codes, kinds) & (table.thread.codes == table.thread.code("training")))
    # Ranks x names must fit: rows below 0.1 % of a window are negligible.
    if len(rows) * len(fleet.ranks) > budgets.CELLS_MOST:
        rows = rows[table.beta[rows] >= 1e-3]
    if len(rows) == 0:
        return None
    key = table.name.codes[rows] * (len(table.file.values) + 1) + table.file.codes[rows]
    key, width, rows = _largest(*distinct(key), rows, table.beta, len(fleet.ranks))
    weight = np.bincount(table.rank[rows] * width + key, weights=table.beta[rows], minlength=len(fleet.ranks) * width)
    return np.asarray(weight.reshape(len(fleet.ranks), width), dtype=np.float64)


def _largest(names: Ints, key: Ints, rows: Ints, weight: Floats | Ints, ranks: int) -> tuple[Ints, int, Ints]:
    """Keep the rows of the heaviest names, as many as fit into a matrix of ranks x names.

    `key`: index in `names` of each of `rows`; `weight`: by pattern row. Returns (column of each
    kept row, number of columns, kept rows).
    """
    room = max(budgets.CELLS_MOST // max(ranks, 1), 1)
    if len(names) <= room:
        return key, len(names), rows
    place = np.full(len(names), -1, dtype=np.int64)
    place[np.argsort(-np.bincount(key, weight[rows], len(names)), kind="stable")[:room]] = np.arange(room)
    kept = place[key] >= 0
    return place[key[kept]], room, rows[kept]


def _by_collectives(fleet: Fleet) -> Ints:
    """Group ranks that make the same collectives and messages about equally often (within a factor
    of 2)."""
    table, ranks = fleet.patterns, len(fleet.ranks)
    steps = fleet.steps.of_each
    rows = np.flatnonzero(table.kind.codes == table.kind.code("collective"))
    if len(rows) == 0:
        return np.zeros(ranks, dtype=np.int64)
    column, width, rows = _largest(*distinct(table.name.codes[rows]), rows, table.count, ranks)
    count = np.zeros((ranks, width))
    np.add.at(count, (table.rank[rows], column), table.count[rows])
    each = count / steps[:, None]
    signature = np.stack([_groups(column, 0.5) for column in each.T], axis=1)  # a lower count is not in every step
    unique, inverse, counts = np.unique(signature, axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    large = np.flatnonzero(counts >= 2)
    if len(large) == 0:
        return np.zeros(ranks, dtype=np.int64)
    nearest = np.arange(len(unique))
    for index in np.flatnonzero(counts < 2)[
        : limits.PEERS_SAMPLED
    ]:  # no peers: join the role that differs in fewest collectives
        nearest[index] = large[np.argmin((unique[large] != unique[index]).sum(axis=1))]
    found: Ints = nearest[inverse]
    return found


def rejoined(fleet: Fleet, before: Ints, after: Ints) -> Ints:
    """Return `after`, the role code by rank, with slow peers put back into their role.

    Ranks that `after` splits from role `before` are put back if the others wait for them and run
    the same program.
    """
    result: Ints = after.copy()
    for role in np.unique(before):
        parts, sizes = np.unique(after[before == role], return_counts=True)
        largest = parts[np.argmax(sizes)]
        others = np.flatnonzero(after == largest)
        for part in parts[parts != largest].tolist():
            ranks = np.flatnonzero(after == part)
            if are_awaited(fleet, ranks, others) and _same_program(fleet, ranks, others):
                result[ranks] = largest
    return result


def are_awaited(fleet: Fleet, ranks: Ints, others: Ints) -> bool:
    """Whether the others wait for these ranks (rows), which work longer and at the same time."""
    steps = fleet.steps
    if steps.count < limits.STEPS_LEAST or len(fleet.ranks) < limits.SEVERAL:
        return False
    own, wait = nan_median(steps.own_s, 1), nan_median(steps.wait_s, 1)
    more_s, less_s = np.median(own[ranks]) - np.median(own[others]), np.median(wait[others]) - np.median(wait[ranks])
    return bool(
        more_s >= limits.EFFECT_SHARE * np.nanmedian(steps.seconds)
        and less_s >= limits.HOLDS_LEAST * more_s
        and np.median(wait[ranks]) < limits.HOLDS_LEAST * np.min(own[others])
    )


def _same_program(fleet: Fleet, ranks: Ints, others: Ints) -> bool:
    """Whether a tenth of the work of each of `others` is on stacks that all of `ranks` have too."""
    ours, theirs = _work_by_stack(fleet, ranks, others)
    common = theirs[:, (ours > 0).all(axis=0)].sum(axis=1)
    return bool((common >= limits.FEW * theirs.sum(axis=1)).all())


def _work_by_stack(fleet: Fleet, ranks: Ints, others: Ints) -> tuple[Floats, Floats]:
    """Ranks x stacks for both groups: share of the window in which the training thread works on
    this stack."""
    table, rows = fleet.patterns, np.append(ranks, others)
    mine = np.isin(table.rank, rows) & (table.thread.codes == table.thread.code("training"))
    mine &= np.isin(table.kind.codes, [table.kind.code("python"), table.kind.code("io")])
    mine &= (table.detail.codes != table.detail.code("sleep")) & (table.stack.codes >= 0)
    key = table.stack.codes[mine] * (len(table.name.values) + 1) + table.name.codes[mine]
    each, column = np.unique(key, return_inverse=True)
    place = np.zeros(len(fleet.ranks), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    found = np.zeros((len(rows), len(each)))
    np.add.at(found, (place[table.rank[mine]], column.reshape(-1)), table.share[mine])
    return found[: len(ranks)], found[len(ranks) :]
