"""Where windows come from: window folders, folders of them, bundles, and stores of objects.

A store is a bucket or a folder that hosts share. A window folder was named by the user: an error in
it ends the command. A store holds objects of many hosts: unreadable ones are left out and counted.
It holds windows of weeks; by name, only those of one time per job are read: of the newest times the
one with most hosts (newest.py). A listing is not trusted to be complete either: the world size
tells which ranks are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rankscope.diagnose.infer.fleet.clocks.far_clocks import with_right_clocks
from rankscope.diagnose.infer.fleet.labels import ints
from rankscope.diagnose.infer.fleet.newest import Best, newest
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import clean, rank_list
from rankscope.observer.window.bundle import is_bundle, read_bundle
from rankscope.observer.window.folder import Window, find_windows, is_window, read_window
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.staging import PARTIAL
from rankscope.observer.window.store import objects, users
from rankscope.observer.window.store.container import (
    Part,
    decode,
    decode_parts,
    decode_summary,
    part_of,
    summary_of_windows,
)
from rankscope.observer.window.store.front import Summary
from rankscope.observer.window.store.keys import fits, label_of
from rankscope.observer.window.store.place import is_uri, open_store
from rankscope.observer.window.store.same_names import rename_hosts
from rankscope.observer.window.store.tidy import once
from rankscope.probes.base.errors import BadData

_AT_ONCE = 16  # objects fetched in parallel: a store answers in tens of milliseconds


_Kind = TypeVar("_Kind")
Unread = list[str]  # location of each unreadable object, and why


@dataclass(frozen=True, slots=True)
class Source:
    """A window folder or bundle (`store` is ''), or an object of a store.

    `host`: as in the object's name, '' if it holds several hosts.
    """

    store: str
    path: str
    hosts: int = 1
    host: str = ""

    def __reduce__(self) -> tuple[type[Source], tuple[str, str, int, str]]:
        """Pickle by values: 125,000 of them go to workers, three times as fast as field by
        field."""
        return Source, (self.store, self.path, self.hosts, self.host)


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects and folders to read, with notes on the places they come from.

    For hosts of a store that are not among the chosen: `absent`, an object of each that had one at
    earlier times; `together`, an object of each that uploaded with the chosen ones and claims
    another time (a wrong clock).
    """

    chosen: tuple[Source, ...]
    notes: tuple[Note, ...]
    absent: tuple[Source, ...] = ()
    together: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Windows that were read, and notes on what was left out."""

    windows: tuple[Window, ...]
    notes: tuple[Note, ...]


def load(places: Iterable[Path | str], every_moment: bool = False) -> Loaded:
    """Read the windows of these folders and stores.

    `every_moment`: all windows of a store, not just those of the newest common time. Raises BadData
    (one clear line) if none, StoreFailed.
    """
    return load_found(find(places, every_moment))


def load_baseline(given: Sequence[Path | str], places: Iterable[Path | str] = ()) -> tuple[Window, ...]:
    """Read the baseline: all windows in `given`, else the earlier windows in bundles among `places`."""
    if given:
        return load(given, every_moment=True).windows
    bundles = [Path(place) for place in places if not is_uri(str(place)) and is_bundle(Path(place))]
    return tuple(window for bundle in bundles for window in read_bundle(bundle).baseline)


def load_found(found: Sources) -> Loaded:
    """Read all found sources, and correct hosts whose clock is wrong.

    Raises BadData if nothing is readable, StoreFailed.
    """
    windows, notes = read(found.chosen)
    if found.chosen and not windows:
        raise BadData(f"none of {len(found.chosen)} windows can be read: {notes[0].text}")
    candidates = (*found.absent[: 4 * _AT_ONCE], *found.together)
    elsewhere = [window for part in read_each(candidates, []) for window in part]
    windows, elsewhere = users.rename_jobs(windows, elsewhere)
    about = rename_hosts([window.manifest for window in (*windows, *elsewhere)])
    named = [replace(window, manifest=each) for window, each in zip((*windows, *elsewhere), about, strict=True)]
    said_otherwise = named[len(windows) :]
    windows, right, said = with_right_clocks(named[: len(windows)], said_otherwise)
    there = {id(window) for window in right}
    labels = {label_of(each.manifest.host, each.manifest.machine)
              for each, window in zip(elsewhere, said_otherwise, strict=True) if id(window) in there}  # fmt: skip
    gone = [each for each in found.absent if each.host not in labels]
    return Loaded(tuple(windows), (*found.notes, *notes, *said, *absent_notes(gone)))


def absent_notes(gone: Sequence[Source]) -> Iterator[Note]:
    """Yield a note on hosts that have no window of the chosen time, with the ranks they had
    before."""
    if not gone:
        return
    each = []
    for source, parts in zip(gone, read_parts(gone[:8], [], {"ranks": ("rank",)}), strict=False):
        ranks = sorted({rank for part in parts for rank in ints(part.tables["ranks"], "rank").tolist() if rank >= 0})
        each.append(clean(source.host, 60) + (f" ({clean(rank_list(tuple(ranks)), 60)})" if ranks else ""))
    more = f" and {len(gone) - len(each)} more" if len(gone) > len(each) else ""
    yield Note(NoteCode.HOSTS_MISSING, f"no window of this moment, though of others, from: {', '.join(each)}{more}")


def find(places: Iterable[Path | str], every_moment: bool = False) -> Sources:
    """List the sources in these places.

    `every_moment`: all windows of a store, not just the newest. Raises BadData where a place holds
    no window.
    """
    chosen: list[Source] = []
    notes: list[Note] = []
    absent: list[Source] = []
    together: list[Source] = []
    for place in places:
        if not is_uri(str(place)) and is_bundle(Path(place)):
            chosen.append(Source("", str(place)))
            continue
        uri: str | None = str(place)
        if not is_uri(str(place)):
            uri = _as_store(Path(place))
            chosen += (Source("", str(folder)) for folder in _folders(Path(place), uri is not None))
        if uri is not None:
            there = _listed(uri, notes)
            best = Best({found.path for found in there}, [], []) if every_moment else _newest(uri, there, notes)
            chosen += (_source(uri, found) for found in there if found.path in best.chosen)
            absent += (_source(uri, found) for found in best.absent)
            # In a copied store all objects have one upload time: limit them.
            together += (_source(uri, found) for found in best.together[: 4 * _AT_ONCE])
    return Sources(tuple(chosen), tuple(notes), tuple(absent), tuple(together))


def read(sources: Sequence[Source]) -> tuple[list[Window], list[Note]]:
    """Read the windows in these sources, each once, in order; a note counts unreadable objects."""
    unread: Unread = []
    found = once(window for windows in read_each(sources, unread) for window in windows)
    return found, [left_out(unread)] if unread else []


def read_each(sources: Sequence[Source], unread: Unread) -> Iterator[list[Window]]:
    """Yield the list of windows in each source; append unreadable ones to `unread`."""
    return _each(sources, unread, decode, list, lambda window: (window.manifest,))


def read_parts(sources: Sequence[Source], unread: Unread, wanted: Mapping[str, Sequence[str]]) -> Iterator[list[Part]]:
    """Yield for each source its windows, limited to these columns of these tables.

    Failures go to `unread`.
    """
    return _each(
        sources,
        unread,
        lambda data: decode_parts(data, wanted),
        lambda windows: [part_of(window, wanted) for window in windows],
        lambda part: (part.manifest,),
    )


def read_summaries(sources: Sequence[Source], unread: Unread) -> Iterator[list[Summary]]:
    """Yield for each source its summary; failures go to `unread`."""
    return _each(
        sources,
        unread,
        lambda data: [decode_summary(data)],
        lambda windows: [summary_of_windows(windows)],
        lambda summary: summary.manifests,
    )


def _each(
    sources: Sequence[Source],
    unread: Unread,
    of_object: Callable[[bytes], list[_Kind]],
    of_windows: Callable[[Sequence[Window]], list[_Kind]],
    manifests: Callable[[_Kind], tuple[Manifest, ...]],
) -> Iterator[list[_Kind]]:
    """Yield, for each source, what is read from it, several objects at a time.

    `of_object` converts the bytes of an object, `of_windows` the windows of a folder or bundle;
    `manifests`: those of one result. An unreadable object gives an empty list and is appended to
    `unread`; errors in folders and bundles are raised.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for source, data in zip(sources, _fetched(sources, pool), strict=True):
            if not source.store:
                path = Path(source.path)
                yield of_windows(read_bundle(path).windows if is_bundle(path) else [read_window(path)])
                continue
            try:
                if data is None:
                    raise BadData("gone since it was listed")
                if isinstance(data, BadData):
                    raise data
                found = of_object(data)
                _refuse_others(source, [about for each in found for about in manifests(each)])
            except BadData as error:
                unread.append(f"{open_store(source.store).at(source.path)}: {error}")
                found = []
            yield found


def _refuse_others(source: Source, inside: Sequence[Manifest]) -> None:
    """Raise BadData if an object named after one host holds windows of another host or time."""
    for about in inside if source.host else ():
        if not fits(source.path, about):
            raise BadData(
                f"its name is another host's or moment's than its window, which is of {clean(about.host, 60)}"
            )


def left_out(unread: Unread) -> Note:
    """A note on objects that could not be read."""
    more = f", and {len(unread) - 1} more" if len(unread) > 1 else ""
    return Note(NoteCode.OBJECTS_LEFT_OUT, f"left out, as it cannot be read: {clean(unread[0], 300)}{more}")


def _fetched(sources: Sequence[Source], pool: ThreadPoolExecutor) -> Iterator[bytes | BadData | None]:
    """Yield the bytes of each object in order, several at a time from a bucket.

    None for folders and objects that are gone, BadData (not raised) for unreadable ones.
    """
    for at in range(0, len(sources), 4 * _AT_ONCE):
        part = sources[at : at + 4 * _AT_ONCE]
        far = any(each.store and not open_store(each.store).local for each in part)
        yield from pool.map(_fetch, part) if far else map(_fetch, part)


def _fetch(source: Source) -> bytes | BadData | None:
    """Return the bytes of an object of a store; None if it is gone or `source` is no object.

    An unreadable object gives its BadData, which is not raised.
    """
    if not source.store:
        return None
    try:
        return objects.get(open_store(source.store), source.path)
    except FileNotFoundError:
        return None
    except BadData as error:
        return error


def _as_store(place: Path) -> str | None:
    """URI of a local folder or file that holds objects by its names; None if it holds none, or is a window itself."""
    if is_window(place):
        return None
    if place.suffix == ".parquet" and place.is_file():
        return place.absolute().as_uri()
    try:
        inside = any(part.startswith("job=") for part in place.absolute().parts)
        names = ("job=*", *(("window=*", "shard=*", "*.parquet") if inside else ()))
        if place.is_dir() and any(any(place.glob(name)) for name in names):
            return place.absolute().as_uri()
    except OSError:
        pass
    return None


def _folders(place: Path, may_be_none: bool) -> tuple[Path, ...]:
    """List the window folders in a place: itself, or those directly in it. Raises BadData if none.

    `may_be_none`: the place is a store as well; then only folders in it count, and there may be
    none.
    """
    if not may_be_none:
        return find_windows(place)
    if is_window(place) or not place.is_dir():
        return ()
    return tuple(
        sorted(each for each in place.iterdir() if not each.name.startswith(PARTIAL) and _is_open_window(each))
    )


def _is_open_window(place: Path) -> bool:
    """Whether a path is a readable window; an unreadable folder inside a store is none."""
    try:
        return is_window(place)
    except OSError:
        return False


def _listed(uri: str, notes: list[Note]) -> Sequence[objects.Found]:
    """List the objects of a store. Raises BadData where there is none."""
    store = open_store(uri)
    there = objects.listing(store)
    closed = [f"{store.at(path)}: closed to us" for path in there.closed]
    if closed:
        notes.append(left_out(closed))
    if not there.objects:
        foreign = f"; {there.foreign} other things lie there" if there.foreign else ""
        foreign += f"; {clean(closed[0], 300)}" if closed else ""
        raise BadData(f"{store.shown} holds no window (no job=…/window=…/shard=…/….parquet){foreign}")
    if there.foreign and not store.local:
        text = f"{there.foreign} things in {store.shown} are no windows by their names, and left out"
        notes.append(Note(NoteCode.OBJECTS_LEFT_OUT, text))
    return there.objects


def _source(uri: str, found: objects.Found) -> Source:
    """Build the `Source` of a listed object of the store at `uri`."""
    return Source(uri, found.path, found.key.hosts, found.key.host)


def _newest(uri: str, there: Sequence[objects.Found], notes: list[Note]) -> Best:
    """Choose the objects of the newest common time.

    Add a note on unreadable ones met on the way.
    """
    unread: dict[str, str] = {}

    def hosts_in(some: Sequence[objects.Found]) -> list[int]:
        """Read the number of hosts in each object; 0 for an unreadable one, whose reason goes to `unread`."""
        told: Unread = []
        hosts = []
        for found, part in zip(some, read_summaries([_source(uri, each) for each in some], told), strict=True):
            if told:
                unread[found.path] = told.pop()
            hosts.append(len({(about.host, about.machine) for one in part for about in one.manifests}))
        return hosts

    best = newest(there, hosts_in, notes)
    elsewhere = [why for path, why in unread.items() if path not in best.chosen]  # chosen objects are read again later
    if elsewhere:
        notes.append(left_out(elsewhere))
    return best
