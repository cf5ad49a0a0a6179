"""Two plugins of pytest for runs of mutants: which functions each test enters, and which test fails first."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import pytest

Slots = dict[tuple[str, str], int]  # by file and function the place of a byte


class Entered:
    """Notes for each test the functions that it enters: in this process and in those that it forks, confined ones too.

    A byte of shared memory for each function: a process that may write nothing can still set it. Programs that a test starts anew are
    not seen.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots, self._marks = slots, mmap.mmap(-1, max(len(slots), 1))
        self.tests: dict[str, tuple[float, list[int]]] = {}  # seconds, and places of functions
        self.imported: list[int] = []  # entered while the file was collected

    def start(self) -> None:
        """Begin to watch this thread and those that it starts."""
        slots, marks = self._slots, self._marks

        def enter(frame: FrameType, _event: str, _argument: object) -> None:
            place = slots.get((frame.f_code.co_filename, frame.f_code.co_name))
            if place is not None:
                marks[place] = 1

        threading.settrace(enter)
        sys.settrace(enter)

    def pytest_collection_finish(self) -> None:
        self.imported = self._taken()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.tests[item.nodeid] = (round(time.monotonic() - began, 3), self._taken())

    def _taken(self) -> list[int]:
        entered = [place for place in range(len(self._slots)) if self._marks[place]]
        self._marks[:] = bytes(len(self._marks))
        return entered


class First:
    """Runs tests in an order, and writes the name of the first that fails."""

    def __init__(self, rank: Callable[[str], object], chosen: Sequence[str] | None, tell: int) -> None:
        self._rank, self._chosen, self._tell = rank, None if chosen is None else set(chosen), tell

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if self._chosen is None or item.nodeid in self._chosen]
        items[:] = sorted(kept, key=lambda item: self._rank(item.nodeid))  # type: ignore[arg-type,return-value]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self._tell, f"{report.nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._tell, f"{report.nodeid}\n".encode())
