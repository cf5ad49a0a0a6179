"""Windows of a few hosts, as they are put into a store."""

from __future__ import annotations

from builders import Job, build

from rankscope.observer.window.folder import Window
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.store import container, objects
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store

NOW = 1_760_000_000.0  # when the windows of the builders begin


def windows(hosts: int = 4, **job: object) -> list[Window]:
    return build(Job(ranks=2 * hosts, hosts=hosts, steps=12, **job))  # type: ignore[arg-type]


def send(store: str, *some: Window) -> None:
    for window in some:
        objects.put(open_store(store), key_of(window.manifest), container.encode([window]))


def same(one: Window, other: Window) -> bool:
    return one.manifest == other.manifest and all(getattr(one, name).equals(getattr(other, name)) for name in TABLES)
