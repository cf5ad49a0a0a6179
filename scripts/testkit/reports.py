"""A plugin of pytest: one set of tests, run by several sessions, shown by one of them as if it had run them all.

What only computes is run by three: one session begins at the first file of tests, at idle priority beside the kernel's tests; the one that
shows all, when it is through with those, begins at the last file. Another like the first may begin when the tests of real jobs go one
after the other, and mostly wait: that is said by a file, `computes`. Tests of the kernel that are marked `beside` are run by sessions of
their own, beside the others of the kernel, and from the last file on by the one that shows all, when it is through with those: what they
look at and wait for are processes of theirs. Those that are
marked `apart` want no other real job on the host: they come when all such files are through that start ranks, beside what computes and
what is marked `beside(ranks=False)`, which these sessions leave for the end, or leave to another (`--ranks-only`). Who takes a file says
so (a file in `taken/`), so that no test is run twice. Tests that are marked `alone` come after all that.

What failed beside other tests is run once more here, as the tests of real jobs are (tests/conftest.py), and counted as a rerun: a
test that waited for a core has not found a defect.

A session that writes reports (`FILE`) is given a lock (`FILE.lock`, flock) by who starts it, and holds it until it ends, however it
ends; who shows a test of a file that the other has taken waits for its report, or for that lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

COMPUTING = ("checks", "unit")  # folders of tests that may run in either session

MOST_AGAIN = 5  # more failures than this are no accident of a busy machine
LOOKS_EVERY_S = 0.2  # for reports of a session that goes on


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("several sessions")
    group.addoption("--reports-to", type=Path, metavar="FILE", help="write the report of each test")
    group.addoption(
        "--reports-from", type=Path, metavar="FILE", action="append", help="show what computes by these reports"
    )
    group.addoption(
        "--reports-beside", type=Path, metavar="FILE", action="append", help="show what is marked `beside` by these"
    )
    group.addoption("--ranks-only", action="store_true", help="run no test that starts no ranks")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: with the machine to itself, after all other tests")
    config.addinivalue_line("markers", "apart: without other real jobs on the host; what only computes may go on")
    config.addinivalue_line(
        "markers",
        "beside: all tests of the file may run beside others of the kernel; ranks=False: nothing that they start is taken for a rank",
    )
    if path := config.getoption("--reports-to"):
        config.pluginmanager.register(Written(config, path))
    if paths := config.getoption("--reports-from"):
        config.pluginmanager.register(Shown(config, paths, config.getoption("--reports-beside") or paths))


def pytest_collection_finish() -> None:
    """Thousands of tests are no garbage: whoever collects it need not look at them again and again (a tenth of what tests take)."""
    gc.collect()
    gc.freeze()


def computes(item: pytest.Item) -> bool:
    return any(parent.name in COMPUTING for parent in item.path.parents)


def marked(item: pytest.Item, name: str) -> bool:
    return item.get_closest_marker(name) is not None


def beside(item: pytest.Item) -> bool:
    return marked(item, "beside")


def starts_ranks(item: pytest.Item) -> bool:
    """Whether who looks at all jobs of the host may find one of this test."""
    mark = item.get_closest_marker("beside")
    return mark is None or bool(mark.kwargs.get("ranks", True))


class Taken:
    """Which files of tests this session runs; another one has the rest."""

    def __init__(self, config: pytest.Config, reports: Path) -> None:
        self._root, self._folder = config.rootpath, reports.with_name("taken")
        self._folder.mkdir(exist_ok=True)
        self._ours: dict[Path, bool] = {}

    def take(self, item: pytest.Item) -> bool:
        """Whether the file of this test is ours: nobody had taken it before."""
        if item.path not in self._ours:
            mark = self._folder / str(item.path.relative_to(self._root)).replace("/", "+")
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                self._ours[item.path] = False
            else:
                self._ours[item.path] = True
        return self._ours[item.path]


class Written:
    """Each report as a line of JSON, as soon as it is there."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._file, self._taken = config, path.open("w", buffering=1), Taken(config, path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What starts ranks first: others wait until there are none."""
        items.sort(key=starts_ranks, reverse=True)
        if self._config.getoption("--ranks-only"):
            items[:] = filter(starts_ranks, items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if self._taken.take(item):
            return None
        item.session._setupstate.teardown_exact(nextitem)  # what the file before has set up was left for this test
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")


class Shown:
    """Runs what no other session has taken, and shows their reports at the place of their tests.

    A test of which another was to leave a report, and left none or not all, is run here.
    """

    def __init__(self, config: pytest.Config, of_computing: Sequence[Path], of_beside: Sequence[Path]) -> None:
        self._taken = Taken(config, of_computing[0])
        self._computes = of_computing[0].with_name("computes")
        self._of_computing, self._of_beside = Reports(config, *of_computing), Reports(config, *of_beside)
        self._again = 0  # tests that were run once more

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What needs the kernel in its order; what may be beside others of the kernel and starts ranks, from the last file to the first,
        as far as its session has not come; what is to be apart; the rest of what may be beside; what computes, from the last file to the
        first; what needs to be alone."""
        real = [item for item in items if not computes(item) and not beside(item)]
        others = [item for item in items if not computes(item) and beside(item)]
        items[:] = [
            *[item for item in real if not marked(item, "apart") and not marked(item, "alone")],
            *_from_the_last_file([item for item in others if starts_ranks(item)]),
            *[item for item in real if marked(item, "apart")],
            *_from_the_last_file([item for item in others if not starts_ranks(item)]),
            *_from_the_last_file([item for item in items if computes(item)]),
            *[item for item in real if marked(item, "alone")],
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if computes(item) or marked(item, "apart"):
            self._computes.touch()
        if not computes(item) and not beside(item):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if self._taken.take(item):
            # What this file sets up is let go with its last test: the next may be one that is only shown, and takes nothing down.
            following = nextitem if nextitem is not None and nextitem.path == item.path else None
            reports = runtestprotocol(item, log=False, nextitem=following)
        else:
            following, reports = None, self._reports_of(item)
        failed = [report for report in reports if report.failed] if self._again < MOST_AGAIN else []
        if failed:
            self._again += 1
            failed[0].outcome = "rerun"  # the word of pytest-rerunfailures, which counts and lists them
            failed[0].rerun = 0
            item.ihook.pytest_runtest_logreport(report=failed[0])
            with contextlib.suppress(Exception):  # what a fixture says in its end, which the report above has
                item.session._setupstate.teardown_exact(None)
            reports = runtestprotocol(item, log=False, nextitem=following)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports_of(self, item: pytest.Item) -> list[pytest.TestReport]:
        """What another session has said of this test; else what comes of it here."""
        reports = (self._of_computing if computes(item) else self._of_beside).of(item.nodeid)
        return reports if _whole(reports) else runtestprotocol(item, log=False, nextitem=None)


class Reports:
    """What other sessions write, read as it comes."""

    def __init__(self, config: pytest.Config, *paths: Path) -> None:
        self._config = config
        self._found: dict[str, list[pytest.TestReport]] = defaultdict(list)
        self._read_bytes = dict.fromkeys(paths, 0)

    def of(self, nodeid: str) -> list[pytest.TestReport]:
        """All reports of a test, once the last one is there; what there is of them, once the sessions have ended."""
        while not _whole(self._found[nodeid]):
            ended = all(map(_ended, self._read_bytes))
            for path in self._read_bytes:
                self._read_on(path)
            if ended:
                break
            if not _whole(self._found[nodeid]):
                time.sleep(LOOKS_EVERY_S)
        return self._found[nodeid]

    def _read_on(self, path: Path) -> None:
        """Read what is new; half a line is left for the next time, or was left by a session that was killed."""
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read_bytes[path])
            lines, _, _ = file.read().rpartition(b"\n")
        self._read_bytes[path] += len(lines) + 1 if lines else 0
        for line in lines.splitlines():
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=json.loads(line))
            # Of a skip: path, line and reason, which pytest wants as the tuple that it was.
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)
            self._found[report.nodeid].append(report)


def _ended(path: Path) -> bool:
    """Whether the session that writes this has."""
    with path.with_name(f"{path.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _whole(reports: list[pytest.TestReport]) -> bool:
    return bool(reports) and reports[-1].when == "teardown"


def _from_the_last_file(items: list[pytest.Item]) -> list[pytest.Item]:
    files: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.path].append(item)
    return [item for path in reversed(files) for item in files[path]]
