"""Order of waiting tasks of several users: one user's crowd of jobs does not delay another user's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rankscope.observer.watch.users import OfUsers

_Waits = TypeVar("_Waits")


@dataclass(slots=True)
class Turns:
    """The order of the users' last turns."""

    _last: OfUsers[int] = field(default_factory=OfUsers)
    _count: int = 0

    def order(self, waiting: Iterable[_Waits], user_of: Callable[[_Waits], str]) -> list[_Waits]:
        """Sort waiting tasks: first those of the user whose last turn is longest ago; one user's stay in order."""
        return sorted(waiting, key=lambda one: self._last.get(user_of(one), 0))

    def took(self, user: str) -> None:
        """Record that it was this user's turn."""
        self._count += 1
        self._last.keep(user, self._count)
