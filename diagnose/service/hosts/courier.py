"""Requests to a store, made one by one in a child, as the calling loop must not block; answers are polled.

An unreachable store blocks for half a minute, and libraries for buckets start threads, which a
process that forks must not have. The child ends with the service.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rankscope.diagnose.service.child import Child
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import RankscopeError


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request of a `Courier`: the stored message as `content`, None where there is none.

    `what`, `job`, `start`: as requested; `put`: the request stored a message; `trouble`: why the content is
    unknown, '' if it is known.
    """

    what: str
    job: str
    start: float
    put: bool
    content: dict[str, Any] | None
    trouble: str = ""


@dataclass(slots=True)
class Courier:
    """Requests to one store. One not answered after `late_s` seconds is lost; so are those beyond `most` at a time."""

    uri: str
    late_s: float = 90.0
    most: int = 256
    _child: Child = field(init=False)
    _waiting: list[tuple[float, Answer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._child = Child(partial(_serve, self.uri))

    def ask(
        self, what: str, job: str, start: float, content: Mapping[str, Any] | None = None, called: str = ""
    ) -> None:
        """Request a message, or with `content` put it unless there is one. Never blocks; `answers` yields the result.

        `what`, `start`: as for `Board.get`; `called`: the job's name in the store, if different. With `most`
        requests waiting it does nothing.
        """
        if len(self._waiting) >= self.most:
            return
        self._waiting.append((time.monotonic(), Answer(what, job, start, content is not None, None)))
        self._child.send({"what": what, "job": called or job, "start": start, "content": content})

    def answers(self) -> Iterator[Answer]:
        """Yield the answers that came since the last call; if the store is late or the child gone, a failure for each."""
        while (said := self._child.next()) is not None:
            if self._waiting:
                yield self._answer(said, self._waiting.pop(0)[1])
        if self._waiting and (not self._child.runs or time.monotonic() - self._waiting[0][0] > self.late_s):
            lost, self._waiting = self._waiting, []
            self._child.close()
            for _, question in lost:
                yield _failed(question, "the store does not answer")

    @property
    def waits(self) -> bool:
        """True if a request is not answered yet."""
        return bool(self._waiting)

    def close(self) -> None:
        """End the child."""
        self._child.close()

    @staticmethod
    def _answer(said: Mapping[str, Any], question: Answer) -> Answer:
        """Make the answer to `question` from the child's reply: the content, or the trouble that the store had."""
        trouble = said["trouble"]
        if trouble:
            return _failed(question, trouble)
        return Answer(question.what, question.job, question.start, question.put, said["content"])


def _failed(question: Answer, trouble: str) -> Answer:
    """Make the answer to a request that failed; `trouble`: why."""
    return Answer(question.what, question.job, question.start, question.put, None, trouble)


def _serve(uri: str, line: socket.socket) -> None:
    """Run in the child: answer each request line with JSON {content, trouble} from the store, until the socket closes."""
    # Imported here, in the child: the service needs neither Arrow nor the libraries for buckets.
    from rankscope.diagnose.service.hosts.board import Board

    board = Board(uri)
    with line.makefile("rb") as asked:
        for each in asked:
            question = json.loads(each)
            where = question["what"], question["job"], question["start"]
            content, trouble = None, ""
            try:
                told = question["content"]
                content = board.get(*where) if told is None else board.put(*where, told)
            except RankscopeError as error:
                trouble = clean(str(error), 200)
            except Exception as error:  # whatever a store's library raises
                trouble = clean(f"{type(error).__name__}: {error}", 200)
            line.sendall(json.dumps({"content": content, "trouble": trouble}).encode() + b"\n")
