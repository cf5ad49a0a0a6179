"""Sources that were not there, over the windows of a fleet (observer/sources.py)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.observer.sources import ESSENTIAL, WHOLE, Seen, Source
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


def sees(about: Manifest) -> bool:
    """Whether a window has all that a verdict needs."""
    return about.sources == WHOLE or not any(one.source in ESSENTIAL and one.seen is Seen.NOT for one in about.sources)
