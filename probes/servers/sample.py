"""Sample what the servers of this host's NFS and Lustre mounts answered, by server and mount.

Mounts are those that the given processes see, and pid 1: a container may have its own. The same
file system has the same device number in all views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.probes.base.growth import grown
from rankscope.probes.base.text import printable
from rankscope.probes.host.block_devices import mount_words
from rankscope.probes.host.mounts import Mount, read_mounts
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.host.procfs import ROOT, proc_path, read_file
from rankscope.probes.servers.lustre import parse_import, parse_stats, target_of
from rankscope.probes.servers.nfs import parse_mountstats

FOR = " for "  # between a server and the mount that it serves
_LUSTRE = ("proc/fs/lustre/osc", "sys/kernel/debug/lustre/osc", "sys/fs/lustre/osc")
_COUNTERS = ("reads", "read_s", "writes", "write_s", "retransmits")
_FILE_CAP, _VIEWS_MOST, _MOUNTS_MOST, _TARGETS_MOST = 1 << 20, 16, 64, 4096
_NAMED_MOST = 64  # targets whose connection is read, of those that are in use first


@dataclass(frozen=True, slots=True)
class Served:
    """What one server answered for one mount. `server`: 'NFS server nas1 (10.0.0.5)' or 'OST
    scratch-OST0003'; `mount`: '/data (nfs4 0:53)'; seconds add up over requests.
    """

    server: str
    mount: str
    reads: int
    read_s: float
    writes: int
    write_s: float
    retransmits: int = 0
    in_flight: int = 0
    folder: str = ""  # of a Lustre client

    @property
    def words(self) -> str:
        """Text that names the server and the mount: 'NFS server nas1 (10.0.0.5) for /data (nfs4 0:53)'."""
        return f"{self.server}{FOR}{self.mount}"


@dataclass(frozen=True, slots=True)
class ServersSample:
    """Counters of a host's servers, by (device number of the mount, Lustre client's folder name or '')."""

    served: dict[tuple[str, str], Served] = field(default_factory=dict)


def sample_servers(pids: Sequence[int] = (), root: Path = ROOT) -> ServersSample:
    """Read the counters of all servers of the mounts that `pids` and pid 1 see. Never raises.

    What cannot be read is left out.
    """
    found: dict[tuple[str, str], Served] = {}
    lustre = list(_clients(root))
    seen: set[tuple[int, int]] = set()
    for pid in _views(pids, root):
        try:
            stats = parse_mountstats(read_file(proc_path(root, pid, "mountstats"), _FILE_CAP))
        except OSError:
            stats = ()
        if not stats and not lustre:
            continue
        try:
            mounts = read_mounts(pid, root).mounts
        except OSError:
            continue
        at = {mount.mount_point: mount for mount in mounts}
        for one in stats:
            mount = at.get(one.mount_point)
            if mount is None or (mount.major, mount.minor) in seen or len(seen) >= _MOUNTS_MOST:
                continue
            seen.add((mount.major, mount.minor))
            address = "" if one.address in ("", one.server) else f" ({one.address})"
            served = Served(
                f"NFS server {one.server}{address}", _words(mount), one.reads, one.read_s, one.writes, one.write_s,
                one.retransmits,
            )  # fmt: skip
            found[f"{mount.major}:{mount.minor}", ""] = served
        found.update(_of_lustre(lustre, mounts, found.keys()))
    return ServersSample(found)


def grown_servers(before: ServersSample, after: ServersSample, root: Path = ROOT) -> tuple[Served, ...]:
    """Return the growth per server that both samples have, with the node that serves each Lustre target now.

    Longest time of requests first. Lustre targets without growth or requests in flight are left out. NFS
    servers without growth are included: one that answers nothing has none.
    """
    pairs = [(before.served[key], now) for key, now in after.served.items() if key in before.served]
    growth = [grown(then, now, *_COUNTERS) for then, now in pairs]
    growth.sort(key=lambda one: -(one.read_s + one.write_s))
    targets = [one for one in growth if one.folder]
    named = {one.folder: _named(one, root) for one in targets[:_NAMED_MOST]}
    return tuple(
        now
        for one in growth
        if (now := named.get(one.folder, one)) and (not now.folder or now.reads or now.writes or now.in_flight)
    )


def _views(pids: Sequence[int], root: Path) -> Iterator[int]:
    """Yield one of `pids` for each mount namespace among them, 16 at most; then pid 1 if its own is new."""
    spaces: set[int] = set()
    for pid in (*pids, 1):
        try:
            space = namespace_inode(pid, "mnt", root)
        except (OSError, ValueError):
            space = -pid
        if space not in spaces and len(spaces) < _VIEWS_MOST:
            spaces.add(space)
            yield pid


def _clients(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield (file system, target, folder) of each Lustre object storage client of this host."""
    for place in _LUSTRE:
        try:
            folders = sorted((root / place).iterdir())[:_TARGETS_MOST]
        except OSError:
            continue
        found = [(*target, folder) for folder in folders if (target := target_of(folder.name)) is not None]
        if any((folder / "stats").exists() for *_, folder in found[:1]):
            yield from found
            return


def _of_lustre(
    clients: Sequence[tuple[str, str, Path]], mounts: Sequence[Mount], known: object
) -> Iterator[tuple[tuple[str, str], Served]]:
    """Yield (key, read and write totals) of each Lustre target, for its file system's first mount.

    Key: (device number 'major:minor' of the mount, client's folder name). `clients`: (file system,
    target, folder). Keys in `known`, unmounted file systems and unreadable targets are skipped.
    """
    places: dict[str, Mount] = {}
    for mount in mounts:
        if mount.fs_type == "lustre":
            places.setdefault(mount.source.rpartition(":/")[2].partition("/")[0], mount)
    for system, target, folder in clients:
        at = places.get(system)
        if at is None:
            continue
        key = f"{at.major}:{at.minor}", folder.name
        if key in known:  # type: ignore[operator]
            continue
        try:
            counts = parse_stats(read_file(str(folder / "stats"), _FILE_CAP))
        except OSError:
            continue
        words = f"OST {system}-{target}"
        yield (
            key,
            Served(words, _words(at), counts.reads, counts.read_s, counts.writes, counts.write_s, folder=str(folder)),
        )


def _named(one: Served, root: Path) -> Served:
    """Add the node that serves a Lustre target now to its name, and the requests in flight.

    Unchanged where its `import` cannot be read.
    """
    folder = Path(one.folder)
    for place in (folder, *(root / other / folder.name for other in _LUSTRE)):
        try:
            told = parse_import(read_file(str(place / "import"), _FILE_CAP))
        except OSError:
            continue
        at = f" at {told.node}" if told.node else f" ({told.state})" if told.state else ""
        return replace(one, server=f"{one.server}{at}", in_flight=told.in_flight)
    return one


def _words(mount: Mount) -> str:
    """Format a mount, '/data (nfs4 0:53)', with unprintable characters escaped."""
    return printable(mount_words(mount, mount.major, mount.minor))
