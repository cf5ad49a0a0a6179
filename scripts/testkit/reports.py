"""A plugin of pytest: reports of one session, shown by another as if it had run the tests.

What failed there is run once more here, as the tests of real jobs are (tests/conftest.py), and counted as a rerun: that session
computes at idle priority beside the kernel's tests, and a test that waited for a core has not found a defect.

The session that writes is given a lock (`FILE.lock`, flock) by who starts it, and holds it until it ends, however it ends;
the one that reads waits for that lock before the first test that the other may have run.
"""

from __future__ import annotations

import fcntl
import json
from collections import defaultdict
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

COMPUTING = ("checks", "unit")  # folders of tests whose reports may come from another session

MOST_AGAIN = 5  # more failures than this are no accident of a busy machine


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("two sessions")
    group.addoption("--reports-to", type=Path, metavar="FILE", help="write the report of each test")
    group.addoption(
        "--reports-from", type=Path, metavar="FILE", help="show these reports in place of running their tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--reports-to"):
        config.pluginmanager.register(Written(config, path))
    if path := config.getoption("--reports-from"):
        config.pluginmanager.register(Shown(config, path))


class Written:
    """Each report as a line of JSON, as soon as it is there."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._file = config, path.open("w", buffering=1)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")


class Shown:
    """Reports of another session at the place of their tests; a test of which there is none, or not all, is run here."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._path = config, path
        self._reports: dict[str, list[pytest.TestReport]] | None = None
        self._again = 0  # tests that were run once more

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not any(parent.name in COMPUTING for parent in item.path.parents):
            return None
        if self._reports is None:
            self._reports = self._read()
        reports = self._reports.get(item.nodeid, [])
        whole = bool(reports) and reports[-1].when == "teardown"
        failed = [report for report in reports if report.failed] if whole and self._again < MOST_AGAIN else []
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if failed:
            self._again += 1
            failed[0].outcome = "rerun"  # the word of pytest-rerunfailures, which counts and lists them
            failed[0].rerun = 0
            item.ihook.pytest_runtest_logreport(report=failed[0])
        # What is run here ends with nothing set up: the test after it may be one that is only shown, and takes nothing down.
        for report in reports if whole and not failed else runtestprotocol(item, log=False, nextitem=None):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _read(self) -> dict[str, list[pytest.TestReport]]:
        with self._path.with_name(f"{self._path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
        found: dict[str, list[pytest.TestReport]] = defaultdict(list)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            try:
                data = json.loads(line)
            except ValueError:  # a session that was killed wrote half of it
                break
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
            if isinstance(
                report.longrepr, list
            ):  # of a skip: path, line and reason, which pytest wants as the tuple that it was
                report.longrepr = tuple(report.longrepr)
            found[report.nodeid].append(report)
        return found
