"""Write why a process that looks like a rank is none. Pure."""

from __future__ import annotations

from rankscope.observer.census.candidates import Candidate, Other
from rankscope.observer.census.launchers import launcher_name, purpose

ALONE = "it works alone"
STARTING = "it may be starting"


def why_no_rank(one: Candidate, ranks_below: bool, drives_actors: bool) -> str:
    """Explain why a candidate is no rank.

    `ranks_below`: ranks descend from it. `drives_actors`: they are actors of Ray.
    """
    framework = one.libraries.framework
    if not framework:
        rank = f"rank {one.claim.rank}" if one.claim else "a rank"
        starting = STARTING if one.python else "not Python"
        what = "it is a wrapper around the rank" if ranks_below else starting
        return f"its environment names {rank}, but no training library is loaded: {what}"
    if one.claim is not None:
        return f"inherits rank {one.claim.rank} from a process that is no rank"
    if ranks_below:
        return "the driver of a Ray job: its actors train" if drives_actors else "it started the ranks, and is none"
    what = purpose(one.cmdline)
    if what:
        return f"{framework} is loaded, but it is {what}: nothing shows that it is a rank of a training job"
    return (
        f"{framework} is loaded, but neither environment nor connections to siblings name a rank, and it hardly wants "
        f"a CPU now (`--pid {one.pid}` observes it): {ALONE}"
    )


def why_no_candidate(one: Other) -> str:
    """Explain why a Python program is no candidate; '' where nobody would expect it to be a rank."""
    if "rankscope" in [word.rpartition("/")[2] for word in one.cmdline[:2]]:
        return ""
    launcher = launcher_name(one.cmdline)
    if launcher:
        return f"launcher ({launcher}): it starts ranks, it is none"
    what = purpose(one.cmdline)
    if what:
        return f"no training library is loaded: it is {what}"
    if one.loads == "MPI":
        return "MPI is loaded, but no launcher of MPI started it: it works alone"
    return "no training library is loaded: numpy alone" if one.loads else ""
