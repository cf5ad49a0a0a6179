"""Whose turn it is, where only so much can be done at a time: no crowd of one user's jobs keeps another's waiting. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from rankscope.observer.watch.users import OfUsers

_Waits = TypeVar("_Waits")


@dataclass(slots=True)
class Turns:
    """Users by their last turns."""

    _last: OfUsers[int] = field(default_factory=OfUsers)
    _count: int = 0

    def order(self, waiting: Iterable[_Waits], user_of: Callable[[_Waits], str]) -> list[_Waits]:
        """What waits, first that whose user's last turn is longest ago; of one user as it came."""
        return sorted(waiting, key=lambda one: self._last.get(user_of(one), 0))

    def took(self, user: str) -> None:
        """This user's turn has come."""
        self._count += 1
        self._last.keep(user, self._count)
