"""What is known of each user, as far as one is met again: anybody may be many users, and none of them makes us grow. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

USERS_KNOWN = 1024
_Known = TypeVar("_Known")


@dataclass(slots=True)
class OfUsers(Generic[_Known]):
    """Something of each of the `USERS_KNOWN` users of whom something was kept last."""

    _known: dict[str, _Known] = field(default_factory=dict)

    def get(self, user: str, unknown: _Known) -> _Known:
        """What was kept of a user; `unknown` where nothing is."""
        return self._known.get(user, unknown)

    def keep(self, user: str, known: _Known) -> None:
        """In place of what was. Of too many users that one is forgotten of whom nothing was kept for longest."""
        self._known.pop(user, None)
        self._known[user] = known
        if len(self._known) > USERS_KNOWN:
            del self._known[next(iter(self._known))]

    def __len__(self) -> int:
        return len(self._known)
