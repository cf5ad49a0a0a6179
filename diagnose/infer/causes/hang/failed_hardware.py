"""Failed hardware that explains a dead or hung rank.

A GPU that fell off the bus, an Xid that no application causes and no rank survives, an uncorrected
memory error without an Xid; and, where all ranks wait in a collective and none is missing, a port
that lost its link. Such evidence beats "the process exited", because ranks die of their GPU. Xids
that the kernel logged before the window count for ranks that are gone. An Xid that user code can
cause explains only the end of its own rank, and points to the job. No Xid explains a rank that was
killed by a signal, since 43 and 45 follow the end of a process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

import numpy as np

from rankscope.diagnose import xids
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, REPORTED, Hypothesis
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source

_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # sent by others, by no Xid


@cause("gpu", "lost", witness="the GPU does not answer, or its Xid", rests_on=[Source.GPU],
       says="{instance|the GPU} has fallen off the bus")  # fmt: skip
def failed_gpus(fleet: Fleet) -> tuple[Hypothesis, ...]:
    """Return one hypothesis per failed GPU of a rank: gpu/lost first, then gpu/xid, then gpu/ecc-errors.

    gpu/lost: it does not answer, or its Xid says so; gpu/xid: another Xid that no rank survives;
    gpu/ecc-errors: uncorrected memory errors or a failed remap. Of several on one GPU, the first.
    """
    found: dict[tuple[tuple[int, ...], str], Hypothesis] = {}
    owners = Owners(fleet)
    for failure in (*_lost(fleet, owners), *_by_xid(fleet, owners), *_by_memory(fleet, owners)):
        found.setdefault((failure.rows, failure.instance), failure)
    return tuple(found.values())


def orphaned_gpus(fleet: Fleet) -> tuple[Hypothesis, ...]:
    """Return hypotheses on lost GPUs of no rank seen, on hosts of a job with missing ranks."""
    ranks = fleet.ranks
    if int(ranks.world_size.max(initial=0)) <= np.count_nonzero(ranks.seen) or not any(ranks.gpus):
        return ()
    owners, hosts = Owners(fleet), frozenset(ranks.observed_on)
    return tuple(
        Hypothesis(
            component="gpu",
            cause="lost",
            rows=(),
            lost_s=float("nan"),
            support=REPORTED,
            evidence=(_gone(counter.instance),),
            action=_lost_action(counter.observed_on, counter.instance),
            host=counter.observed_on,
            instance=counter.instance,
        )
        for counter in fleet.counters.moved("gpu.lost")
        if owners.rank_of(counter) < 0 and counter.observed_on in hosts
    )


@cause("nic", "down", witness="a hang, and the port is down", rests_on=[Source.PORTS])
def failed_ports(fleet: Fleet) -> tuple[Hypothesis, ...]:
    """Return hypotheses on at most eight NICs of ranks that were inactive for a while, longest first.

    Empty if more than half of the ranks' NICs were.
    """
    down = sorted((c for c in fleet.counters.named("nic.state") if c.rank >= 0), key=lambda c: c.value)
    bad = [counter for counter in down if counter.value < 1]
    if len(bad) * 2 > len(down) or not bad:
        return ()
    return tuple(
        _failure(
            fleet, c.rank, "nic", "down", c.instance,
            (Evidence("sysfs", f"{c.instance} active", 100 * c.value, 100.0, "% of the window", len(down) - len(bad)),),
            f"Bring up {c.instance} of {fleet.ranks.host[c.rank]}: cable, transceiver, switch port "
            f"(`ibstat {c.instance.partition('/')[0]}`, `ip link`).",
        )
        for c in bad[:8]
    )  # fmt: skip


def application_failures(fleet: Fleet, rows: Iterable[int]) -> tuple[Hypothesis, ...]:
    """Return hypotheses for those exited ranks (rows) that an Xid of their own code ended."""
    found: list[Hypothesis] = []
    owners, by_row = Owners(fleet), dict[int, list[tuple[int, Counter, str]]]()
    for number, counter, source in _xids(fleet, owners):
        if xids.ends_application(number):
            by_row.setdefault(owners.rank_of(counter), []).append((number, counter, source))
    for row in rows:
        status = fleet.ranks.exit_status[row]
        killed = np.isfinite(status) and int(status) & 0x7F in _BY_OTHERS
        if fleet.ranks.state[row] == "exited" and not killed:
            found.extend(_by_application(fleet, row, by_row.get(row, ())))
    return tuple(found)


def _by_application(fleet: Fleet, row: int, told_of: Iterable[tuple[int, Counter, str]]) -> Iterator[Hypothesis]:
    """Yield one gpu/xid hypothesis on an exited rank (row) for every Xid given; selects none.

    `told_of`: (number, counter, source) of each Xid; the caller passes only those that user code can cause.
    """
    for number, counter, source in told_of:
        what, _, action = xids.meaning(number)
        text = f"Xid {number} on {counter.instance}: {what}, as user code can cause it"
        told = Evidence(source, text, counter.value, None, "events")
        see = f"{action} See the rank's log and `dmesg -T | grep Xid`{after('on', fleet.ranks.host[row])}."
        yield _failure(fleet, row, "gpu", "xid", counter.instance, (told,), see, REPORTED)


def _xids(fleet: Fleet, owners: Owners) -> Iterator[tuple[int, Counter, str]]:
    """Yield (number, counter, source) of Xids in the window, then of earlier ones of exited ranks."""
    for prefix, source in (("gpu.xid.", "nvml"), ("gpu.earlier_xid.", "kernel log")):
        for name in fleet.counters.names(prefix):
            number = xids.number_of(name.removeprefix(prefix))
            if number is None:
                continue
            for counter in fleet.counters.moved(name):
                row = owners.rank_of(counter)
                if prefix == "gpu.xid." or (row >= 0 and fleet.ranks.state[row] == "exited"):
                    yield number, counter, source


def _failure(
    fleet: Fleet, row: int, component: str, cause: str, instance: str, evidence: tuple[Evidence, ...], action: str,
    support: float = CONVICTED,
) -> Hypothesis:  # fmt: skip
    """Return the hypothesis that a device (`instance`) of a rank (row) failed."""
    return Hypothesis(
        component=component, cause=cause, rows=(row,), lost_s=float("nan"), support=support, evidence=evidence, action=action,
        host=fleet.ranks.host[row], instance=instance,
    )  # fmt: skip


class Owners:
    """Map GPU counters to ranks, also after the rank's process has ended."""

    def __init__(self, fleet: Fleet) -> None:
        self._ranks = fleet.ranks
        self._first: dict[tuple[str, str], int] | None = None  # row by (host, GPU), built on first use
        self._homeless: dict[str, int] = {}  # by host: the only rank without a GPU, -1 for several

    def rank_of(self, counter: Counter) -> int:
        """Return the rank (row) that uses the counter's GPU; -1 for none.

        A GPU without a rank belongs to the only rank of its host that has no GPU, if others have GPUs.
        """
        if counter.rank >= 0:
            return counter.rank
        ranks = self._ranks
        if self._first is None:
            self._first = {}
            for row, (host, gpus) in enumerate(zip(ranks.observed_on, ranks.gpus, strict=False)):
                for gpu in gpus:
                    self._first.setdefault((host, gpu), row)
                if not gpus:
                    self._homeless[host] = -1 if host in self._homeless else row
        # A GPU without a rank belonged to the only rank of the host without a GPU, if others have
        # GPUs.
        nobody = self._homeless.get(counter.observed_on, -1) if self._first else -1
        return self._first.get((counter.observed_on, counter.instance), nobody)


def _lost(fleet: Fleet, owners: Owners) -> Iterator[Hypothesis]:
    """Yield gpu/lost for each GPU of a rank that has fallen off the bus by its counter."""
    for counter in fleet.counters.moved("gpu.lost"):
        row = owners.rank_of(counter)
        if row >= 0:
            action = _lost_action(fleet.ranks.host[row], counter.instance)
            yield _failure(fleet, row, "gpu", "lost", counter.instance, (_gone(counter.instance),), action)


def _gone(instance: str) -> Evidence:
    """Return the evidence that a GPU has fallen off the bus."""
    return Evidence("nvml", f"{instance} answers", "no: it has fallen off the bus", None, "")


def _lost_action(host: str, instance: str) -> str:
    """Return the advice for a GPU that has fallen off the bus."""
    see = "`dmesg -T | grep Xid`"
    return f"Drain {host or 'its host'} and power-cycle it; have {instance} inspected if it falls off the bus again ({see})."


def _by_xid(fleet: Fleet, owners: Owners) -> Iterator[Hypothesis]:
    """Yield gpu/lost or gpu/xid for each Xid that no rank survives, those that mean a lost GPU first."""
    for number, counter, source in sorted(_xids(fleet, owners), key=lambda each: not xids.means_lost(each[0])):
        row = owners.rank_of(counter)
        if row < 0 or not xids.ends_ranks(number):
            continue
        what, _, action = xids.meaning(number)
        told = Evidence(source, f"Xid {number} on {counter.instance}: {what}", counter.value, None, "events")
        cause = "lost" if xids.means_lost(number) else "xid"
        see = f"{action} See `dmesg -T | grep Xid`{after('on', fleet.ranks.host[row])}."
        yield _failure(fleet, row, "gpu", cause, counter.instance, (told,), see)


def _by_memory(fleet: Fleet, owners: Owners) -> Iterator[Hypothesis]:
    """Yield gpu/ecc-errors per GPU of a rank with uncorrected errors or a failed remap.

    A counter that moved on more than half of its GPUs is ignored.
    """
    counters = fleet.counters
    for name in ("gpu.ecc_uncorrected", "gpu.remap_failed"):
        rows = counters.rows(name)
        moved = rows[counters.table.value[rows] > 0]
        if len(moved) * 2 > max(len(rows), 2):
            continue
        for counter in map(counters.at, np.sort(moved).tolist()):
            row = owners.rank_of(counter)
            if row >= 0:
                told = Evidence(
                    "nvml", f"{name[4:].replace('_', ' ')} on {counter.instance}", counter.value, 0.0, "events"
                )
                action = f"Drain {fleet.ranks.host[row] or 'its host'}, reset {counter.instance}; replace it if the errors return."
                yield _failure(fleet, row, "gpu", "ecc-errors", counter.instance, (told,), action)
