"""Where this process asks for what it has no right to do itself.

An observer that has given its rights up (observer/apart) puts here whom it asks: the process that started it, which has kept them.
The few functions that need more than reading look here first. Everywhere else nobody is asked, and they do it themselves.
"""

from __future__ import annotations

from typing import Any, Protocol


class Elsewhere(Protocol):
    """A process that does a few things on behalf of this one."""

    def ask(self, what: str, handed: tuple[int, ...] = (), **details: Any) -> tuple[dict[str, Any], tuple[int, ...]]:
        """The answer, and descriptors that came with it, which are the caller's. `handed`: descriptors for the other process.

        Raises what went wrong there: OSError, RankscopeError.
        """
        ...


_whom: list[Elsewhere] = []


def elsewhere() -> Elsewhere | None:
    """Whom to ask; None where this process has its rights."""
    return _whom[0] if _whom else None


def ask_from_now_on(whom: Elsewhere) -> None:
    """This process has given its rights up."""
    _whom[:] = [whom]
