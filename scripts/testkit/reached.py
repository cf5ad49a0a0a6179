"""Two plugins of pytest for runs of mutants: which functions each test enters, and which test fails first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from testkit.entered import watch


class Entered:
    """Notes for each test which functions are entered while it runs, by the processes that it starts too (entered.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tests: dict[str, tuple[float, list[int]]] = {}  # seconds, and places of functions
        self.imported: list[int] = []  # entered while the file was collected

    def pytest_configure(self) -> None:
        self._marks = watch(self._folder)

    def pytest_collection_finish(self) -> None:
        self.imported = self._taken()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.tests[item.nodeid] = (round(time.monotonic() - began, 3), self._taken())

    def _taken(self) -> list[int]:
        entered = [place for place, mark in enumerate(self._marks) if mark != b"\0"]
        self._marks[:] = bytes(len(self._marks))
        return entered


class First:
    """Runs some tests in an order, or all as they come, and writes the name of the first that fails."""

    def __init__(self, chosen: Sequence[str], tell: int) -> None:
        self._places, self._tell = {name: place for place, name in enumerate(chosen)}, tell

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._places:
            items[:] = sorted(
                (item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid]
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self._tell, f"{report.nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._tell, f"{report.nodeid}\n".encode())
