"""Rules that choose ranks: by a process's own claim, its children's, or its connections with similar ones.

Their order: ranks.py.
"""

from __future__ import annotations

from dataclasses import replace

from rankscope.observer.census.candidates import MPI, Candidate
from rankscope.observer.census.identity import RANK_MOST, Claim, parse_arguments, same_rank
from rankscope.observer.census.launchers import is_ray_controller, is_tool, launcher_name, ray_actor
from rankscope.observer.census.numbering import number_by_node
from rankscope.observer.census.rules.draft import Draft
from rankscope.observer.census.rules.taken import Chosen


def reject_launchers(draft: Draft) -> None:
    """Reject launchers, tools such as TensorBoard, and Ray Train's controller, by their command lines."""
    for pid, one in draft.loaded.items():
        name = launcher_name(one.cmdline)
        if name and one.comm != "pt_data_worker" and "--multiprocessing-fork" not in one.cmdline:
            draft.rejected[pid] = f"launcher ({name}): it starts ranks, it is none"
        elif is_tool(one.cmdline):
            draft.rejected[pid] = "a tool that uses a training library, not a training process"
        elif is_ray_controller(one.cmdline):
            draft.rejected[pid] = "Ray's train controller: it starts the workers, which are the ranks"


def choose_claimants(draft: Draft) -> None:
    """Apply rule 1: choose processes whose environment claims a rank.

    Parents come before children, so that a child can be compared with the decision on its parent.
    """
    for pid in draft.in_order(draft.loaded):
        one = draft.loaded[pid]
        if one.claim is None or pid in draft.rejected:
            continue
        above = draft.ancestor(pid)
        if above is None or above.claim is None:
            draft.chosen[pid] = Chosen(one, one.claim)
            continue
        if same_rank(above.claim, one.claim):
            if above.libraries.framework == MPI != one.libraries.framework:
                draft.chosen[pid] = Chosen(one, one.claim)
                draft.chosen.pop(above.pid, None)
                draft.rejected[above.pid] = "a wrapper around the rank: it has MPI, the process that it started trains"
            continue  # else a worker of the rank above, or a rank that mp.spawn made: decided later
        sibling = _as_sibling(draft, above, one.claim)
        if sibling is not None:
            # The parent is a rank itself and started the others: Lightning, or any script that does
            # the same.
            draft.chosen[pid] = Chosen(one, one.claim)
            if above.pid in draft.chosen:
                draft.chosen[above.pid] = Chosen(above, sibling)
        elif one.claim.world_size > 1 or above.claim.job == one.claim.job:
            # A node's rank in the pod's environment, the real ranks below: torchrun under another
            # name.
            draft.chosen[pid] = Chosen(one, one.claim)
            if draft.chosen.pop(above.pid, None) is not None:
                draft.rejected[above.pid] = "launcher: its children have ranks of their own"


def _as_sibling(draft: Draft, above: Candidate, claim: Claim) -> Claim | None:
    """Return an ancestor's claim if it claims another rank of the same job; else None."""
    for said in (above.claim, draft.later_claim(above)):
        if said is not None and (said.job, said.world_size, said.node_rank) == (
            claim.job, claim.world_size, claim.node_rank
        ) and said.rank != claim.rank and said.world_size > 1:  # fmt: skip
            return said
    return None


def choose_parents_of_ranks(draft: Draft) -> None:
    """Apply rule 2: choose the parent of ranks, if its children lack exactly the lowest rank.

    The children of a launcher claim all ranks; those of a rank that started the others lack its
    own.
    """
    children: dict[int, list[Chosen]] = {}
    for child, one in draft.chosen.items():
        children.setdefault(getattr(draft.ancestor(child), "pid", 0), []).append(one)
    for pid in draft.in_order(draft.loaded):
        if pid in draft.chosen or pid in draft.rejected or draft.loaded[pid].claim is not None:
            continue
        below = children.get(pid, [])
        claims = [one.claim for one in below]
        if len({(one.job, one.world_size, one.node_rank) for one in claims}) != 1:
            continue
        first = min(claims, key=lambda claim: claim.rank)
        least = first.rank - first.local_rank
        if first.local_rank < 1 or least < 0 or len(claims) >= first.world_size:
            continue
        group = [pid, *(one.process.pid for one in below)]
        connected = draft.connections.groups(group, {each: draft.parents.get(each, 0) for each in group})
        if any(pid in linked for linked in connected):
            claim = replace(first, launcher="its children", rank=least, local_rank=0)
            draft.chosen[pid] = Chosen(draft.loaded[pid], claim)
            children.setdefault(getattr(draft.ancestor(pid), "pid", 0), []).append(draft.chosen[pid])


def choose_numbered_by_node(draft: Draft) -> None:
    """Give global numbers to ranks whose environments number them per host."""
    claims = {pid: (one.process.owner, one.claim) for pid, one in draft.chosen.items()}
    for pid, (claim, certain) in number_by_node(claims).items():
        draft.chosen[pid] = Chosen(draft.chosen[pid].process, claim, guessed=not certain)


def choose_spawned(draft: Draft) -> None:
    """Apply rule 3 to children of one process: those connected with each other by TCP are ranks."""
    families: dict[tuple[int, int, str], list[int]] = {}
    for pid, one in draft.loaded.items():
        above = draft.ancestor(pid, launchers=True)
        if pid in draft.chosen or pid in draft.rejected or above is None or one.comm == "pt_data_worker":
            continue
        if any(map(draft.serves, draft.above(pid))):
            continue  # an inference engine on several devices
        if one.claim is None or (above.claim is not None and same_rank(above.claim, one.claim)):
            families.setdefault((above.pid, one.owner, ray_actor(one.cmdline)), []).append(pid)
    for (parent, _, actor), children in families.items():
        chosen = draft.chosen.get(parent)
        base = chosen.claim if chosen is not None else None
        parents = {**dict.fromkeys(children, parent), parent: draft.parents.get(parent, 0)}
        together = _with_parent(draft, parent, children, parents)
        if chosen is not None and not together and draft.evidence(parent)[0]:
            # it works with other ranks: its children, connected among themselves, are its workers
            continue
        for group in [together] if together else draft.connections.groups(children, parents):
            draft.number(group, f"spawn-{draft.host}-{parent}", base, parents)
            if parent not in group:
                draft.chosen.pop(parent, None)
                draft.rejected[parent] = (
                    "the driver of a Ray job: its actors train"
                    if actor
                    else "it started ranks by multiprocessing and waits for them"
                )


def _with_parent(draft: Draft, parent: int, children: list[int], parents: dict[int, int]) -> list[int]:
    """Return the children together with their parent if that is rank 0 itself (JAX); [] if it only
    serves them.
    """
    if parent in draft.rejected:
        return []
    for group in draft.connections.groups([parent, *children], parents):
        hub = draft.connections.hub(group, parents) if parent in group else None
        if hub is None or hub.pid != parent:
            continue
        told = [parse_arguments(draft.loaded[pid].cmdline)[0] for pid in group if pid != parent]
        if all(told) or draft.connections.linked_otherwise(hub, group, parents):
            return group
    return []


def choose_unnamed(draft: Draft) -> None:
    """Apply rule 3 to processes without a parent of the job: connected with similar ones, or
    `--rank N` and connections.
    """
    lonely = [
        pid
        for pid in draft.in_order(draft.loaded)
        if draft.loaded[pid].claim is None
        and pid not in draft.chosen
        and pid not in draft.rejected
        and draft.ancestor(pid, launchers=True) is None
    ]
    parents = {pid: draft.parents.get(pid, 0) for pid in lonely}
    grouped: set[int] = set()
    alike: dict[tuple[str, int], list[int]] = {}
    for pid in lonely:
        one = draft.loaded[pid]
        alike.setdefault((ray_actor(one.cmdline), one.owner), []).append(pid)
    for _, members in sorted(alike.items()):
        for group in draft.connections.groups(members, parents):
            draft.number(group, f"local-{draft.host}-{min(group)}", None, parents)
            grouped |= set(group)
    for pid in lonely:
        rank, local, world = parse_arguments(draft.loaded[pid].cmdline)
        if pid in grouped or rank is None or not draft.connections.reaches_out(pid, parents[pid]):
            continue
        claim = Claim("command line", f"local-{draft.host}-{pid}", rank, local, world, 0, "", True)
        draft.chosen[pid] = Chosen(draft.loaded[pid], claim, guessed=True)
        draft.notes.append(f"pid {pid}: rank {rank} is from its command line; its job is unknown")


def refuse_absurd_numbers(draft: Draft) -> None:
    """Reject absurd rank numbers, which products of hosts and ranks per host can still give."""
    for pid, one in list(draft.chosen.items()):
        if one.claim.rank > RANK_MOST:
            draft.chosen.pop(pid)
            draft.rejected[pid] = f"by its environment it is rank {one.claim.rank}: no job has so many"
        elif one.claim.world_size > RANK_MOST:
            draft.chosen[pid] = replace(one, claim=replace(one.claim, world_size=0))
            draft.notes.append(f"{one.claim.job}: its number of ranks is unknown: its environments name too many")
