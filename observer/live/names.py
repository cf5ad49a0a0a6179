"""Words for the stacks of a window, each once, with fair limits per user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rankscope.observer.live import limits
from rankscope.observer.live.shares import Places
from rankscope.observer.thread.functions import StackName


@dataclass(slots=True)
class Names:
    """The words for stacks that a window stores, while their users have room.

    `words`: stack number -> its words. `lost`: number of stacks without words.
    """

    users: frozenset[str]
    words: dict[int, StackName] = field(default_factory=dict)
    lost: int = 0
    _met: dict[int, int] = field(default_factory=dict)  # stacks seen in this window -> process
    _places: Places = field(init=False)

    def __post_init__(self) -> None:
        self._places = Places(limits.STACKS, self.users)

    def knows(self, identity: int, pid: int) -> bool:
        """Tell whether a stack has words, and mark it as seen in this process."""
        if identity not in self.words:
            return False
        self._met[identity] = pid
        return True

    def left(self, user: str) -> int:
        """Return how many more stacks a user may have."""
        return self._places.left(user)

    def keep(self, identity: int, words: StackName, pid: int, user: str) -> bool:
        """Store the words of a user's stack; return False, and count it as lost, where there is no
        room.
        """
        if identity not in self.words:
            if self.left(user) <= 0:
                self.lost += 1
                return False
            self._places.take(user)
        self.words[identity] = words
        self._met[identity] = pid
        return True

    def renew(self, whose: Callable[[int], str]) -> None:
        """Begin another window: drop stacks not seen in the last one. `whose`: the user of a
        process.
        """
        self.words = {identity: words for identity, words in self.words.items() if identity in self._met}
        self._places, self.lost = Places(limits.STACKS, self.users), 0
        for identity in self.words:
            self._places.take(whose(self._met[identity]))
        self._met.clear()
