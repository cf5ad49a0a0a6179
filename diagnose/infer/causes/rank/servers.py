"""Name the server that a rank's files wait for: an NFS server, or a Lustre target.

Joined with the files by the device number of their mount. A server is slow if it answers clearly
later than others do: other servers of this host, else those that serve other hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.probes.host.block_devices import number_in
from rankscope.probes.servers.sample import FOR

_ROWS_MOST = 10_000  # of all hosts: enough for the usual answer
_CLEARLY = 2.0  # times as long an answer as others': servers of one kind differ less under equal load


@dataclass(frozen=True, slots=True)
class Server:
    """What one server answered for one mount in the window. `name`: 'NFS server nas1 (10.0.0.5)'."""

    name: str
    mount: str
    device: str
    answers: float = 0.0
    seconds: float = 0.0
    retransmits: float = 0.0
    in_flight: float = 0.0

    @property
    def point(self) -> str:
        """The folder that it is mounted at."""
        return self.mount.rpartition(" (")[0] or self.mount

    @property
    def each_s(self) -> float | None:
        """Mean time to an answer; None without answers."""
        return self.seconds / self.answers if self.answers else None


@dataclass(frozen=True, slots=True)
class Blamed:
    """The server that files wait for, or the only one that they have.

    `others_s`: seconds to an answer of the others, None if there are none; `is_slow`: it answers clearly
    later than they do; `only_here`: the others are the same server's answers to other hosts.
    """

    server: Server
    others_s: float | None
    is_slow: bool
    only_here: bool = False


def servers_of(counters: Iterable[Counter], writing: bool) -> tuple[Server, ...]:
    """Return the storage servers that the counters of one host name, one for each server and mount.

    `writing`: with their figures on writes; else on reads.
    """
    fields = dict(zip(_names(writing), ("answers", "seconds", "retransmits", "in_flight"), strict=True))
    found: dict[str, dict[str, float]] = {}
    for counter in counters:
        if counter.scope == "storage":
            of = found.setdefault(counter.instance, {})
            if counter.name in fields:
                of[fields[counter.name]] = counter.value
    servers = []
    for instance, values in found.items():
        name, mark, mount = instance.partition(FOR)
        if mark:
            servers.append(Server(name, mount, number_in(mount), **values))
    return tuple(servers)


def server_of(fleet: Fleet, row: int, detail: str, writing: bool) -> Blamed | None:
    """Return the server that a rank's (row) files of a mount wait for; None if none is known or stands out.

    `detail`: the mount or the file, as a file call names it; `writing`: by writes, else by reads.
    """
    here: list[Counter] = []
    elsewhere: dict[str, list[Counter]] = {}
    host = fleet.ranks.observed_on[row]
    for name in _names(writing):
        for counter in islice(fleet.counters.of(name, -1), _ROWS_MOST):
            (here if counter.observed_on == host else elsewhere.setdefault(counter.observed_on, [])).append(counter)
    others = [one for counters in elsewhere.values() for one in servers_of(counters, writing)]
    return blamed(servers_of(here, writing), detail, others)


def _names(writing: bool) -> tuple[str, ...]:
    """Return the names of the counters of answers, their seconds, retransmits and requests in flight.

    `writing`: of writes; else of reads.
    """
    way = "write" if writing else "read"
    return (f"storage.{way}s", f"storage.{way}_s", "storage.retransmits", "storage.in_flight")


def blamed(servers: Sequence[Server], detail: str, elsewhere: Sequence[Server] = ()) -> Blamed | None:
    """Return the server that the files of a mount wait for most; None if none is known, or none of several is slow.

    `detail`: the mount or the file, as a file call names it; `elsewhere`: servers as other hosts
    see them.
    """
    device = number_in(detail) or _device_at(servers, detail)
    serving = [one for one in servers if device and one.device == device]
    if not serving:
        return None
    worst = max(serving, key=lambda one: (one.in_flight, one.seconds) if not one.answers else (0.0, one.seconds))
    if len(serving) > 1:
        worst = max(serving, key=lambda one: one.each_s or 0.0)
        beside = [one for one in serving if one is not worst]
    else:
        beside = [one for one in servers if one is not worst]
    if worst.each_s is None:
        return Blamed(worst, None, is_slow=False) if len(serving) == 1 else None
    same = _usual([one for one in elsewhere if one.name == worst.name])
    if _is_slower(worst, same):
        return Blamed(worst, same, is_slow=True, only_here=True)
    others = _usual(beside)
    if others is None:
        others = _usual(elsewhere)
    slow = _is_slower(worst, others)
    return Blamed(worst, others, slow) if slow or len(serving) == 1 else None


def _device_at(servers: Sequence[Server], path: str) -> str:
    """Return the device of the mount that a path lies under; '' if no server serves it."""
    under = [one for one in servers if path.startswith(f"{one.point}/")]
    return max(under, key=lambda one: len(one.point)).device if under else ""


def _usual(servers: Iterable[Server]) -> float | None:
    """Return the median over servers of the mean seconds to an answer; None if none answered."""
    times = [one.each_s for one in servers if one.each_s is not None]
    return median(times) if times else None


def _is_slower(server: Server, usual_s: float | None) -> bool:
    """Return whether the server's mean answer takes twice `usual_s` and limits.EFFECT_SECONDS; False if unknown."""
    each_s = server.each_s or 0.0
    return usual_s is not None and each_s >= _CLEARLY * usual_s and each_s >= limits.EFFECT_SECONDS


def evidence_of(found: Blamed, writing: bool) -> tuple[Evidence, ...]:
    """Return the evidence for which server is waited for, how long its answers take, and what was sent again."""
    server, way = found.server, "write" if writing else "read"
    told = [Evidence("storage", "served by", server.name, None, "")]
    if server.each_s is not None:
        told.append(Evidence("storage", f"{server.name} answers a {way} after", server.each_s, found.others_s, "s"))
    if server.retransmits:
        told.append(Evidence("storage", f"requests sent to {server.name} again", server.retransmits, 0.0, "events"))
    return tuple(told)


def action_of(found: Blamed, writing: bool) -> str:
    """Return the advice on what to look at, by what is known of the server."""
    server, way = found.server, "write" if writing else "read"
    if found.is_slow and server.each_s is not None and found.others_s is not None:
        took, usual = _span(server.each_s), _span(found.others_s)
        if found.only_here:
            return (
                f"{server.name} answers a {way} of this host in {took}, of other hosts in {usual}: look at this host's network to it "
                f"and its mount options{_tool(server)}."
            )
        why = f"{server.name} answers a {way} in {took}, others in {usual}"
        return f"{why}: look at that server and the network to it{_tool(server)}."
    return f"They are served by {server.name}: compare with what other hosts see of it{_tool(server)}."


def _span(seconds: float) -> str:
    """Format seconds as text: '1.5 s', below a second '20 ms'."""
    return f"{seconds:.1f} s" if seconds >= 0.999 else f"{seconds * 1e3:.3g} ms"


def _tool(server: Server) -> str:
    """Return the command that shows the server's statistics, in parentheses after a space."""
    if server.name.startswith("NFS"):
        return f" (nfsiostat 1 {server.point})"
    return f" (lctl get_param osc.*{_ost(server)}*.stats)"


def _ost(server: Server) -> str:
    """Return the target ('OST0004') in a Lustre server's name; 'OST' if there is none."""
    return next((word.rpartition("-")[2] for word in server.name.split() if "-OST" in word), "OST")
