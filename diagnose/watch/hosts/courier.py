"""Questions to a store from a loop that must not wait: a child asks them, one after the other, and its answers are read as they come.

A store that is away keeps whoever asks for half a minute, and what speaks with a bucket starts threads, which a process that forks must
not have. The child ends with the service.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankscope.diagnose.text import clean
from rankscope.diagnose.watch.signals import as_usual, end_with
from rankscope.probes.errors import RankscopeError
from rankscope.probes.mapped.reader import READER


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question: what lies there, None where nothing does; `trouble`: what kept it from being known."""

    what: str
    job: str
    start: float
    put: bool
    content: dict[str, Any] | None
    trouble: str = ""


@dataclass(slots=True)
class Courier:
    """One store's. A question that is not answered after `late_s` is lost; so are more than `most` at a time."""

    uri: str
    late_s: float = 90.0
    most: int = 256
    most_bytes: int = 8 << 20
    _pid: int = 0
    _line: socket.socket | None = None
    _read: bytes = b""
    _waiting: list[tuple[float, Answer]] = field(default_factory=list)

    def ask(self, what: str, job: str, start: float, content: Mapping[str, Any] | None = None) -> None:
        """Ask what lies there; with `content`: put it there first, unless there is something. Never waits."""
        question = Answer(what, job, start, content is not None, None)
        if len(self._waiting) >= self.most:
            return
        self._waiting.append((time.monotonic(), question))
        try:
            if self._line is None:
                self._begin()
            assert self._line is not None
            asked = json.dumps({"what": what, "job": job, "start": start, "content": content}).encode() + b"\n"
            if self._line.send(asked) != len(asked):
                raise OSError("it does not read")
        except OSError:
            self.close()

    def answers(self) -> Iterator[Answer]:
        """What has come since the last call."""
        while (line := self._next()) is not None:
            if self._waiting:
                yield self._answer(line, self._waiting.pop(0)[1])
        if self._waiting and (self._line is None or time.monotonic() - self._waiting[0][0] > self.late_s):
            lost, self._waiting = self._waiting, []
            self.close()
            for _, question in lost:
                yield _failed(question, "the store does not answer")

    def close(self) -> None:
        """End the child."""
        if self._line is not None:
            self._line.close()
            self._line, self._read = None, b""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0

    def _begin(self) -> None:
        READER.close()  # its process serves one of us
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                if end_with(parent):
                    as_usual()
                    ours.close()
                    _serve(self.uri, theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._line = ours

    def _next(self) -> bytes | None:
        """The next whole line; None where there is none yet."""
        while self._line is not None and b"\n" not in self._read:
            try:
                part = self._line.recv(1 << 16)
            except BlockingIOError:
                return None
            except OSError:
                part = b""
            if not part or len(self._read) > self.most_bytes:
                self.close()
                return None
            self._read += part
        line, mark, rest = self._read.partition(b"\n")
        if not mark:
            return None
        self._read = rest
        return line

    @staticmethod
    def _answer(line: bytes, question: Answer) -> Answer:
        said = json.loads(line)
        trouble = said["trouble"]
        if trouble:
            return _failed(question, trouble)
        return Answer(question.what, question.job, question.start, question.put, said["content"])


def _failed(question: Answer, trouble: str) -> Answer:
    return Answer(question.what, question.job, question.start, question.put, None, trouble)


def _serve(uri: str, line: socket.socket) -> None:
    # Here, in the child: the service needs neither Arrow nor what speaks with buckets.
    from rankscope.diagnose.watch.hosts.board import Board

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
            except Exception as error:  # whatever a store's library makes of its answer
                trouble = clean(f"{type(error).__name__}: {error}", 200)
            line.sendall(json.dumps({"content": content, "trouble": trouble}).encode() + b"\n")
