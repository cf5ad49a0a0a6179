"""Find the servers that ranks of this host ask: processes that listen on a port to which a rank is connected.

In: the ranks, /proc. Out: `Server`s. A server is a Python process of the rank's user in the same
network namespace that is neither a rank, nor one of the processes above it (launchers hold torch's
store), nor a tool. Nothing else is read where no rank is connected with such a port. Never raises.

Limits: servers on other hosts or in other network namespaces are not found, nor one to which no
rank holds a connection at that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankscope.observer.census.found import FoundRank
from rankscope.observer.census.kinship import Connections
from rankscope.observer.census.launchers import is_tool, launcher_name
from rankscope.observer.census.titles import program
from rankscope.probes.base.command_line import is_python
from rankscope.probes.base.patience import patiently
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.namespaces import namespace_inode, owner_uid
from rankscope.probes.host.procfs import ROOT

_ABOVE_MOST = 64
# Processes whose open files are read, for all users and then per user.
_FREELY, _EACH = 4096, 1024


@dataclass(frozen=True, slots=True)
class Server:
    """A process that ranks of a job ask.

    `port`: where it listens; `program`: its script or module; `asked_by`: numbers of the ranks that
    were connected with it when it was found.
    """

    job: str
    pid: int
    port: int
    program: str
    asked_by: tuple[int, ...]


def find_servers(ranks: Sequence[FoundRank], root: Path = ROOT) -> tuple[Server, ...]:
    """Find the servers of all jobs, ordered by job and port."""
    return patiently(lambda: tuple(_found(ranks, root)))


def _found(ranks: Sequence[FoundRank], root: Path) -> Iterator[Server]:
    """Yield the servers that the ranks are connected with, ordered by job and port."""
    connections = Connections(root)
    pids = {rank.pid for rank in ranks}
    asking = defaultdict[tuple[str, int, int], list[FoundRank]](list)  # (job, namespace, port)
    inside = dict[int, int]()  # a rank of each namespace that is connected with something
    for rank in ranks:
        space = _space(rank.pid, root)
        for port in sorted(connections.ports_reached(rank.pid)):
            asking[rank.identity.job, space, port].append(rank)
            inside.setdefault(space, rank.pid)
    reached = {(space, port) for _, space, port in asking}
    wanted = {
        inode: (space, port)
        for space, pid in inside.items()
        for inode, port in connections.ports_listening(pid).items()
        if (space, port) in reached
    }
    if not wanted:
        return
    above = {each for rank in ranks for each in _above(rank.pid, root)}
    for inode in {inode for pid in pids | above for inode in connections.inodes(pid)}:
        wanted.pop(inode, None)  # the store of a launcher or of rank 0
    holders = _holders(wanted, pids | above, root, connections) if wanted else {}
    for (job, space, port), askers in sorted(asking.items(), key=lambda item: (item[0][0], item[0][2])):
        pid = holders.get((space, port))
        if pid is not None and owner_uid(pid, root) == askers[0].owner:
            command = _command(pid, root)
            if is_python(command) or program(command):
                numbers = tuple(sorted(rank.identity.rank for rank in askers))
                yield Server(job, pid, port, program(command), numbers)


def _holders(
    wanted: dict[int, tuple[int, int]], others: set[int], root: Path, connections: Connections
) -> dict[tuple[int, int], int]:
    """Return the pid that holds each listening socket: of several the oldest, which started the others.

    `wanted`: inode of the socket -> (network namespace, port), the key of the result; `others`: pids
    that are no servers.
    """
    found = dict[tuple[int, int], int]()
    fair = Fair(_FREELY, _EACH)
    for pid in sorted(procfs.pids(root)):
        user = partial(whose, pid, root)
        if pid in others or fair.left(user) < 1 or not _serves(pid, root):
            continue
        fair.spend(1, user)
        for inode in wanted.keys() & connections.inodes(pid):
            found.setdefault(wanted[inode], pid)
        if len(found) == len(set(wanted.values())):
            break
    return found


def _serves(pid: int, root: Path) -> bool:
    """Tell whether a process may be a server: it runs Python, and is no launcher or tool."""
    try:
        name = procfs.read_link(procfs.proc_path(root, pid, "exe")).rpartition("/")[2]
    except OSError:
        return False
    command = _command(pid, root)
    return name.startswith(("python", "pypy")) and not launcher_name(command) and not is_tool(command)


def _command(pid: int, root: Path) -> tuple[str, ...]:
    """Read the command line of a process; () where unreadable."""
    try:
        return procfs.read_cmdline(pid, root)
    except OSError:
        return ()


def _above(pid: int, root: Path) -> Iterable[int]:
    """Yield the ancestors of a process, nearest first, without pid 1."""
    for _ in range(_ABOVE_MOST):
        try:
            pid = procfs.read_stat(pid, root).ppid
        except (OSError, ValueError):
            return
        if pid <= 1:
            return
        yield pid


def _space(pid: int, root: Path) -> int:
    """Return the inode of a process's network namespace; -pid where unreadable."""
    try:
        return namespace_inode(pid, "net", root)
    except (OSError, ValueError):
        return -pid
