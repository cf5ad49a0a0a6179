"""Remember a value for each user, of a bounded number of users: anybody may be many users. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

USERS_KNOWN = 1024
_Known = TypeVar("_Known")


@dataclass(slots=True)
class OfUsers(Generic[_Known]):
    """Values of the `USERS_KNOWN` most recently updated users."""

    _known: dict[str, _Known] = field(default_factory=dict)

    def get(self, user: str, unknown: _Known) -> _Known:
        """Return a user's value; `unknown` if there is none."""
        return self._known.get(user, unknown)

    def keep(self, user: str, known: _Known) -> None:
        """Set a user's value; beyond the limit the least recently updated user is dropped."""
        self._known.pop(user, None)
        self._known[user] = known
        if len(self._known) > USERS_KNOWN:
            del self._known[next(iter(self._known))]

    def __len__(self) -> int:
        return len(self._known)
