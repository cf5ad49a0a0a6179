"""Where windows come from: window folders, folders of them, bundles, and stores of objects (a bucket, or a folder that hosts share).

A window folder was named by somebody: what is wrong with it ends the command. In a store lies what many hosts put there: what cannot be
read is left out, and counted. A store holds the windows of weeks; by their names only those of one moment of each job are read: of the
newest moments the one with most hosts. What a listing does not say is not believed either: who is missing is told by the world size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.bundle import is_bundle, read_bundle
from rankscope.observer.window.folder import Window, find_windows, is_window, read_window
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.container import Part, decode, decode_parts, part_of
from rankscope.observer.window.store.keys import Key
from rankscope.observer.window.store.place import is_uri, open_store
from rankscope.observer.window.store.same_names import told_apart
from rankscope.observer.window.store.tidy import once
from rankscope.probes.errors import BadData

_NEWEST = 5  # moments of a job: hosts that are late with one are not late with five
_SAME_MOMENT_S = 5  # windows begin at multiples of it
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


@dataclass(frozen=True, slots=True)
class Sources:
    """What is to be read, and what there is to say about where it lies."""

    chosen: tuple[Source, ...]
    notes: tuple[Note, ...]


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
    """All that was found. BadData where nothing of it can be read; StoreFailed."""
    windows, notes = read(found.chosen)
    about = told_apart([window.manifest for window in windows])
    windows = [replace(window, manifest=manifest) for window, manifest in zip(windows, about, strict=True)]
    if found.chosen and not windows:
        raise BadData(f"none of {len(found.chosen)} windows can be read: {notes[0].text}")
    return Loaded(tuple(windows), (*found.notes, *notes))


def find(places: Iterable[Path | str], every_moment: bool = False) -> Sources:
    """What lies in these places. `every_moment`: of a store all of its windows. BadData where one of them holds no window."""
    chosen: list[Source] = []
    notes: list[Note] = []
    for place in places:
        if not is_uri(str(place)) and is_bundle(Path(place)):
            chosen.append(Source("", str(place)))
            continue
        uri: str | None = str(place)
        if not is_uri(str(place)):
            uri = _as_store(Path(place))
            chosen += (Source("", str(folder)) for folder in _folders(Path(place), uri is not None))
        if uri is not None:
            chosen += _objects(uri, every_moment, notes)
    return Sources(tuple(chosen), tuple(notes))


def read(sources: Sequence[Source]) -> tuple[list[Window], list[Note]]:
    """The windows in these sources, each once, in their order; what of the stores could not be read is counted in the notes."""
    unread: Unread = []
    windows = once(window for found in read_each(sources, unread) for window in found)
    return windows, [left_out(unread)] if unread else []


def read_each(sources: Sequence[Source], unread: Unread) -> Iterator[list[Window]]:
    """The windows in each of these sources; those that cannot be read go into `unread`."""
    return _each(sources, unread, decode, list)


def read_parts(sources: Sequence[Source], unread: Unread, wanted: Mapping[str, Sequence[str]]) -> Iterator[list[Part]]:
    """The same, of each window these columns of these tables."""
    return _each(
        sources,
        unread,
        lambda data: decode_parts(data, wanted),
        lambda windows: [part_of(window, wanted) for window in windows],
    )


def _each(
    sources: Sequence[Source],
    unread: Unread,
    of_object: Callable[[bytes], list[_Kind]],
    of_windows: Callable[[Sequence[Window]], list[_Kind]],
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
            except BadData as error:
                unread.append(f"{open_store(source.store).at(source.path)}: {error}")
                found = []
            yield found


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
    return find_windows(place) if any(is_window(each) for each in place.iterdir()) else ()


def _objects(uri: str, every_moment: bool, notes: list[Note]) -> Iterator[Source]:
    """The objects of a store that are to be read."""
    store = open_store(uri)
    there = objects.listing(store)
    if not there.objects:
        foreign = f"; {there.foreign} other things lie there" if there.foreign else ""
        raise BadData(f"{store.shown} holds no window (no job=…/window=…/shard=…/….parquet){foreign}")
    if there.foreign and not store.local:
        text = f"{there.foreign} things in {store.shown} are no windows by their names, and left out"
        notes.append(Note(NoteCode.OBJECTS_LEFT_OUT, text))
    chosen = {found.path for found in there.objects} if every_moment else _newest(there.objects, notes)
    for found in there.objects:
        if found.path in chosen:
            yield Source(uri, found.path, found.key.hosts, found.key.host)


def _newest(found: Sequence[objects.Found], notes: list[Note]) -> set[str]:
    """Paths of the objects of one moment of each job."""
    of_job: dict[str, list[objects.Found]] = {}
    for each in sorted(found, key=lambda one: -one.key.start):
        of_job.setdefault(each.key.job, []).append(each)
    chosen: set[str] = set()
    left = 0
    for mine in of_job.values():
        moments: list[list[objects.Found]] = []
        for each in mine:
            if moments and moments[-1][0].key.start - each.key.start < _SAME_MOMENT_S:
                moments[-1].append(each)
            else:
                moments.append([each])
        best = max(moments[:_NEWEST], key=lambda moment: _hosts(each.key for each in moment))  # the first is the newest
        chosen.update(each.path for each in best)
        left += len(moments) - 1
        before = {each.key.host for moment in moments[:_NEWEST] for each in moment} - {each.key.host for each in best}
        if before and all(each.key.host for each in best):  # of what was put together nobody knows whose it is
            named = ", ".join(clean(host, 60) for host in sorted(before)[:8])
            more = f" and {len(before) - 8} more" if len(before) > 8 else ""
            notes.append(
                Note(NoteCode.HOSTS_MISSING, f"no window of this moment, though of others, from: {named}{more}")
            )
    if left:
        text = f"of {left + len(of_job)} moments in the store the newest common one of each job is judged; name a window to judge another"
        notes.append(Note(NoteCode.OTHER_MOMENTS, text))
    return chosen


def _hosts(keys: Iterable[Key]) -> int:
    """How many hosts objects are of: a host that is in one of several as well counts twice, as nobody can know."""
    return sum(key.hosts for key in keys)
