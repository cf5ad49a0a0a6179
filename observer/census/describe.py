"""Facts about a rank besides its number: namespaces, CPUs, container, control group, what it runs.

What it runs is one short digest, the same for runs that are started alike on one host. Launchers give
each run a new id and other ports; what remains is the program with all its arguments, and the folder
where it runs. Arguments may hold secrets: the digest is keyed by the host, and no argument can be read
from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from rankscope.observer.census.candidates import Candidate
from rankscope.observer.census.containers import Container, find_container
from rankscope.observer.census.identity import COMMAND_CAP, Claim, RankIdentity
from rankscope.observer.window.missing import LocalRank
from rankscope.probes.base.command_line import shown
from rankscope.probes.base.text import printable
from rankscope.probes.host import procfs
from rankscope.probes.host.cgroup import best_path, read_entries
from rankscope.probes.host.machine import machine_id
from rankscope.probes.host.namespaces import namespace_inode

# Options that differ between the ranks of a run, or between runs that are started alike.
_OWN = re.compile(
    r"--?((local|global|node|machine)[-_]?)?rank|--?(master|rdzv|dist)[-_](port|addr|id|endpoint|url|conf)|--?(run|job)[-_]?id|--?port"
)
_DIGEST_BYTES, _ARGUMENTS_MOST = 8, 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from /proc about one process. `notes`: what could not be read."""

    inner_pid: int
    cpus: str
    netns: int
    container: Container | None
    cgroup: str
    notes: tuple[str, ...]


def read_facts(pid: int, root: Path) -> Facts:
    """Read the facts of a process. Never raises: what cannot be read is empty, with a note."""
    inner_pid, cpus, netns, notes = pid, "", 0, list[str]()
    try:
        status = procfs.read_status(pid, root)
        inner_pid, cpus = status.inner_pid, status.cpus_allowed[:1024]
    except (OSError, ValueError) as error:
        notes.append(f"pid {pid}: status: {procfs.reason(error)}")
    try:
        netns = namespace_inode(pid, "net", root)
    except (OSError, ValueError) as error:
        notes.append(f"pid {pid}: network namespace: {procfs.reason(error)}")
    try:
        entries = read_entries(pid, root)
    except OSError as error:
        entries = ()
        notes.append(f"pid {pid}: control groups: {procfs.reason(error)}")
    container = find_container(entry.path for entry in entries)
    return Facts(inner_pid, cpus, netns, container, best_path(entries), tuple(notes))


def identity_of(
    one: Candidate, claim: Claim, facts: Facts, host: str, command: tuple[str, ...], title: str, run: str
) -> RankIdentity:
    """Build the identity of a rank. Its addresses and devices are added later."""
    return RankIdentity(
        job=claim.job,
        rank=claim.rank,
        local_rank=claim.local_rank,
        world_size=claim.world_size,
        local_world_size=claim.local_world_size,
        role=claim.role,
        host=host,
        node=printable(one.node, 64),
        container=facts.container.container_id if facts.container else "",
        pid=one.pid,
        inner_pid=facts.inner_pid,
        netns=facts.netns,
        addresses=(),
        gpus=(),
        nics=(),
        cpus=facts.cpus,
        python=one.libraries.python_version,
        command=shown(command, COMMAND_CAP),
        title=title,
        run=run,
    )


def run_of(pid: int, command: Sequence[str], root: Path) -> str:
    """Digest the arguments and the folder of a process, keyed by the host; '' where `command` is empty.

    Arguments that number a rank or a run are left out: processes that differ only in them share a digest.
    """
    if not command:
        return ""
    try:
        folder = str((root / f"proc/{pid}/cwd").readlink())
    except OSError:
        folder = ""
    told = "\0".join((folder, *common_arguments(command[:_ARGUMENTS_MOST])))
    data = told.encode("utf-8", "surrogateescape")
    return blake2b(data, digest_size=_DIGEST_BYTES, key=_key(root)).hexdigest()


@lru_cache(maxsize=4)
def _key(root: Path) -> bytes:
    """Return the key of all this host's digests, made of its machine id; read once, not for each rank."""
    return machine_id(root).encode()


def common_arguments(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without those that number a rank or a run, and without their values."""
    skips = False
    for argument in command:
        name, equals, _ = argument.partition("=")
        own = _OWN.fullmatch(name) is not None
        if not own and not skips:
            yield argument
        skips = own and not equals


def local_rank(identity: RankIdentity) -> LocalRank:
    """Select the fields of an identity that tell whether all ranks of a host are present."""
    one = identity
    return LocalRank(
        one.job, one.host, one.container, one.netns, one.rank, one.local_rank, one.world_size, one.local_world_size
    )
