"""Sources that were not there, over the windows of a fleet (observer/sources.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankscope.observer.sources import ESSENTIAL, WHOLE, Seen, Source, SourceState
from rankscope.observer.window.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Lacking:
    """A source that was not there on `hosts`; `why`, as the first of them says."""

    source: Source
    hosts: tuple[str, ...]
    why: str


def lacking_in(manifests: Iterable[Manifest]) -> tuple[Lacking, ...]:
    """The sources that some of these windows lack, in the order of `Source`."""
    hosts: dict[Source, dict[str, None]] = {}
    why: dict[Source, str] = {}
    for about in manifests:
        if about.sources == WHOLE:
            continue
        for one in about.sources:
            if one.seen is Seen.NOT:
                hosts.setdefault(one.source, {})[about.host] = None
                why.setdefault(one.source, one.why)
    return tuple(Lacking(source, tuple(hosts[source]), why[source]) for source in Source if source in hosts)


def missing(about: Manifest) -> tuple[SourceState, ...]:
    """The sources that were not there in a window."""
    return tuple(one for one in about.sources if one.seen is Seen.NOT)


def sees(about: Manifest) -> bool:
    """Whether a window has all that a verdict needs."""
    return about.sources == WHOLE or not any(one.source in ESSENTIAL for one in missing(about))


def seeing(windows: Sequence[int], manifests: Sequence[Manifest]) -> tuple[list[int], tuple[Lacking, ...]]:
    """Those of these windows (places in `manifests`) that have what a verdict needs, and what the others lack. All of them where none
    has."""
    kept = [number for number in windows if sees(manifests[number])]
    if not kept or len(kept) == len(windows):
        return list(windows), ()
    others = lacking_in(manifests[number] for number in windows if not sees(manifests[number]))
    return kept, tuple(one for one in others if one.source in ESSENTIAL)
