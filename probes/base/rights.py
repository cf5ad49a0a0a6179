"""Delegation of privileged operations to another process.

An observer that has given up its rights (observer/apart) registers here the process that started
it, which still has them. The few functions that need more than reading check here first. In all
other processes nothing is registered, and they act themselves.
"""

from __future__ import annotations

from typing import Any, Protocol


class Delegate(Protocol):
    """A process that performs privileged operations on request."""

    def ask(self, what: str, handed: tuple[int, ...] = (), **details: Any) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Request an operation; return its answer and descriptors, which the caller owns.

        `handed`: descriptors to pass to the other process. Raises the errors from there: OSError,
        RankscopeError.
        """
        ...


_whom: list[Delegate] = []


def delegate() -> Delegate | None:
    """Return the process to delegate to; None where this process has its rights."""
    return _whom[0] if _whom else None


def set_delegate(whom: Delegate) -> None:
    """Delegate from now on to `whom`: this process has given up its rights."""
    _whom[:] = [whom]
