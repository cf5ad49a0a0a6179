"""Where windows come from: window folders, folders of them, bundles, and stores of objects (a bucket, or a folder that hosts share).

A window folder was named by somebody: what is wrong with it ends the command. In a store lies what many hosts put there: what cannot be
read is left out, and counted. A store holds the windows of weeks; by their names only those of one moment of each job are read: of the
newest moments the one with most hosts (newest.py). What a listing does not say is not believed either: who is missing is told by the
world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rankscope.diagnose.fleet.clocks.far_clocks import with_right_clocks
from rankscope.diagnose.fleet.labels import ints
from rankscope.diagnose.fleet.newest import Best, newest
from rankscope.diagnose.text import clean, rank_list
from rankscope.diagnose.verdict.note import Note, NoteCode
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
from rankscope.probes.errors import BadData

_AT_ONCE = 16  # objects that are fetched together: a store answers in tens of milliseconds


_Kind = TypeVar("_Kind")
Unread = list[str]  # where an object lies that cannot be read, and why


@dataclass(frozen=True, slots=True)
class Source:
    """A window folder or a bundle (`store` is ''), or an object of a store. `host`: as its name says it, '' where that is of several."""

    store: str
    path: str
    hosts: int = 1
    host: str = ""

    def __reduce__(self) -> tuple[type[Source], tuple[str, str, int, str]]:
        """Workers are sent 125,000 of them: by its values one takes a third of the time that it takes field by field."""
        return Source, (self.store, self.path, self.hosts, self.host)


@dataclass(frozen=True, slots=True)
class Sources:
    """What is to be read, and what there is to say about where it lies.

    Of hosts of a store that are not among the chosen: `absent`, an object of each that had one of the moments before; `together`, one of
    each other that came into the store with the chosen ones and says another moment, as where a clock is wrong.
    """

    chosen: tuple[Source, ...]
    notes: tuple[Note, ...]
    absent: tuple[Source, ...] = ()
    together: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Windows, and what was met on the way to them."""

    windows: tuple[Window, ...]
    notes: tuple[Note, ...]


def load(places: Iterable[Path | str], every_moment: bool = False) -> Loaded:
    """The windows of these folders and stores. BadData, one clear line, where there is none; StoreFailed."""
    return load_found(find(places, every_moment))


def load_baseline(given: Sequence[Path | str], places: Iterable[Path | str] = ()) -> tuple[Window, ...]:
    """The windows of a baseline: those that are given, of stores all; else those that came with the bundles among `places`."""
    if given:
        return load(given, every_moment=True).windows
    bundles = [Path(place) for place in places if not is_uri(str(place)) and is_bundle(Path(place))]
    return tuple(window for bundle in bundles for window in read_bundle(bundle).baseline)


def load_found(found: Sources) -> Loaded:
    """All that was found, and of hosts with a wrong clock what is of the same moment. BadData where nothing can be read; StoreFailed."""
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
    """The note of hosts that have no window of the moment, with the ranks that they had before."""
    if not gone:
        return
    each = []
    for source, parts in zip(gone, read_parts(gone[:8], [], {"ranks": ("rank",)}), strict=False):
        ranks = sorted({rank for part in parts for rank in ints(part.tables["ranks"], "rank").tolist() if rank >= 0})
        each.append(clean(source.host, 60) + (f" ({clean(rank_list(tuple(ranks)), 60)})" if ranks else ""))
    more = f" and {len(gone) - len(each)} more" if len(gone) > len(each) else ""
    yield Note(NoteCode.HOSTS_MISSING, f"no window of this moment, though of others, from: {', '.join(each)}{more}")


def find(places: Iterable[Path | str], every_moment: bool = False) -> Sources:
    """What lies in these places. `every_moment`: of a store all of its windows. BadData where one of them holds no window."""
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
            # A store that was copied: all came at one time.
            together += (_source(uri, found) for found in best.together[: 4 * _AT_ONCE])
    return Sources(tuple(chosen), tuple(notes), tuple(absent), tuple(together))


def read(sources: Sequence[Source]) -> tuple[list[Window], list[Note]]:
    """The windows in these sources, each once, in their order; what of the stores could not be read is counted in the notes."""
    unread: Unread = []
    found = once(window for windows in read_each(sources, unread) for window in windows)
    return found, [left_out(unread)] if unread else []


def read_each(sources: Sequence[Source], unread: Unread) -> Iterator[list[Window]]:
    """The windows in each of these sources; those that cannot be read go into `unread`."""
    return _each(sources, unread, decode, list, lambda window: (window.manifest,))


def read_parts(sources: Sequence[Source], unread: Unread, wanted: Mapping[str, Sequence[str]]) -> Iterator[list[Part]]:
    """The same, of each window these columns of these tables."""
    return _each(
        sources,
        unread,
        lambda data: decode_parts(data, wanted),
        lambda windows: [part_of(window, wanted) for window in windows],
        lambda part: (part.manifest,),
    )


def read_summaries(sources: Sequence[Source], unread: Unread) -> Iterator[list[Summary]]:
    """The same, of each source its summary."""
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
    """Who may write under one host's name speaks for that one alone. BadData."""
    for about in inside if source.host else ():
        if not fits(source.path, about):
            raise BadData(
                f"its name is another host's or moment's than its window, which is of {clean(about.host, 60)}"
            )


def left_out(unread: Unread) -> Note:
    """The note of objects that could not be read."""
    more = f", and {len(unread) - 1} more" if len(unread) > 1 else ""
    return Note(NoteCode.OBJECTS_LEFT_OUT, f"left out, as it cannot be read: {clean(unread[0], 300)}{more}")


def _fetched(sources: Sequence[Source], pool: ThreadPoolExecutor) -> Iterator[bytes | BadData | None]:
    """The bytes of each object in order: from a bucket several at a time, from a folder one after the other."""
    for at in range(0, len(sources), 4 * _AT_ONCE):
        part = sources[at : at + 4 * _AT_ONCE]
        far = any(each.store and not open_store(each.store).local for each in part)
        yield from pool.map(_fetch, part) if far else map(_fetch, part)


def _fetch(source: Source) -> bytes | BadData | None:
    """None where it is gone."""
    if not source.store:
        return None
    try:
        return objects.get(open_store(source.store), source.path)
    except FileNotFoundError:
        return None
    except BadData as error:
        return error


def _as_store(place: Path) -> str | None:
    """The URI of a local folder, or file, that holds objects; None where it holds none by their names."""
    if place.suffix == ".parquet" and place.is_file():
        return place.absolute().as_uri()
    try:
        inside = any(part.startswith("job=") for part in place.absolute().parts)
        if place.is_dir() and (inside or any(place.glob("job=*"))):
            return place.absolute().as_uri()
    except OSError:
        pass
    return None


def _folders(place: Path, may_be_none: bool) -> tuple[Path, ...]:
    if not may_be_none:
        return find_windows(place)
    if is_window(place) or not place.is_dir():
        return ()
    return tuple(
        sorted(each for each in place.iterdir() if not each.name.startswith(PARTIAL) and _is_open_window(each))
    )


def _is_open_window(place: Path) -> bool:
    """What somebody closed beside the objects of a store is none."""
    try:
        return is_window(place)
    except OSError:
        return False


def _listed(uri: str, notes: list[Note]) -> Sequence[objects.Found]:
    """The objects of a store. BadData where there is none."""
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
    return Source(uri, found.path, found.key.hosts, found.key.host)


def _newest(uri: str, there: Sequence[objects.Found], notes: list[Note]) -> Best:
    """Of a store what is of the newest common moment. What was looked at to find it and cannot be read is told."""
    unread: dict[str, str] = {}

    def hosts_in(some: Sequence[objects.Found]) -> list[int]:
        told: Unread = []
        hosts = []
        for found, part in zip(some, read_summaries([_source(uri, each) for each in some], told), strict=True):
            if told:
                unread[found.path] = told.pop()
            hosts.append(len({(about.host, about.machine) for one in part for about in one.manifests}))
        return hosts

    best = newest(there, hosts_in, notes)
    elsewhere = [why for path, why in unread.items() if path not in best.chosen]  # what is chosen is read once more
    if elsewhere:
        notes.append(left_out(elsewhere))
    return best
