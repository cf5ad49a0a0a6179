"""scripts/testkit: the tests of one session are shown by another, with what they said; none is lost, whatever became of the first."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
TESTS = {
    "kernel/test_a.py": "def test_first(): open('kernel-ran', 'a').write('x')\n",
    "unit/test_b.py": """
import pytest
@pytest.fixture(scope='session')
def held():
    yield 3
    open('let-go', 'a').write('x')
def test_good(held): open('unit-ran', 'a').write('x')
def test_bad(held): assert held == 4, 'held is three'
@pytest.mark.skip(reason='nothing to skip for')
def test_left_out(): pass
""",
    "lab/test_c.py": "def test_last(): open('lab-ran', 'a').write('x')\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {SCRIPTS}\naddopts = -ra -p no:cacheprovider\n")
    (tmp_path / "conftest.py").write_text("pytest_plugins = ('testkit.reports',)\n")
    for name, text in TESTS.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return tmp_path


def session(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *arguments]  # which takes a second
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False).stdout


def ran(project: Path, name: str) -> int:
    path = project / f"{name}-ran"
    return len(path.read_text()) if path.exists() else 0


WHOLE = ("tests/kernel", "tests/unit", "tests/lab", "--reports-from", "reports")


def test_reports_of_the_first_session_are_counted_and_shown_by_the_second(project: Path) -> None:
    session(project, "tests/unit", "--reports-to", "reports")
    said = session(project, *WHOLE)
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 3 passed, 1 skipped, 1 rerun in ")
    assert "held is three" in said and "nothing to skip for" in said
    assert [ran(project, name) for name in ("kernel", "unit", "lab")] == [1, 1, 1]


def test_what_failed_in_the_first_session_is_run_once_more_and_told_as_a_rerun(project: Path) -> None:
    late = "from pathlib import Path\n\ndef test_late(): assert Path('quiet').exists(), 'no core was free'\n"
    (project / "tests/unit/test_b.py").write_text(late)
    session(project, "tests/unit", "--reports-to", "reports")
    (project / "quiet").touch()
    said = session(project, *WHOLE, "--rerun-show-tracebacks")
    assert said.splitlines()[-1].strip("= ").startswith("3 passed, 1 rerun in ")
    assert "RERUN tests/unit/test_b.py::test_late" in said and "no core was free" in said


def test_the_second_runs_from_the_end_what_the_first_has_not_come_to(project: Path) -> None:
    """Each file in one session alone, with what it sets up made once."""
    slow = "import time\nfrom pathlib import Path\n\ndef test_early():\n    until = time.monotonic() + 120\n"
    slow += "    while not Path('late-ran').exists() and time.monotonic() < until: time.sleep(0.02)\n"
    late = "import pytest\n\n@pytest.fixture(scope='module')\ndef made():\n    open('made-ran', 'a').write('x')\n\n"
    late += "def test_one(made): open('late-ran', 'a').write('x')\n\ndef test_two(made): pass\n"
    (project / "tests/unit/test_b.py").write_text(slow)
    (project / "tests/unit/test_d.py").write_text(late)
    with (project / "reports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "tests/unit", "--reports-to", "reports"]
        first = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True, pass_fds=[lock.fileno()])
        while not (project / "taken/tests+unit+test_b.py").exists():
            assert first.poll() is None
            time.sleep(0.02)
    said = session(project, *WHOLE, "-v")
    assert first.communicate()[0].splitlines()[-1].strip("= ").startswith("1 passed in ")
    assert said.splitlines()[-1].strip("= ").startswith("5 passed in ")
    assert [ran(project, name) for name in ("late", "made", "lab")] == [1, 1, 1]
    order = [said.index(f"::test_{name} ") for name in ("first", "last", "one", "two", "early")]
    assert order == sorted(order)


def test_what_is_to_be_alone_comes_last(project: Path) -> None:
    alone = "import pytest\n\n@pytest.mark.alone\ndef test_alone(): pass\n"
    (project / "tests/kernel/test_0.py").write_text(alone)
    said = session(project, *WHOLE, "-v")
    order = [said.index(f"::test_{name} ") for name in ("first", "last", "good", "alone")]
    assert order == sorted(order)


def test_many_failures_are_no_accident(project: Path) -> None:
    (project / "tests/unit/test_b.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', range(8))\ndef test_broken(n): assert False\n"
    )
    session(project, "tests/unit", "--reports-to", "reports")
    said = session(project, *WHOLE)
    assert said.splitlines()[-1].strip("= ").startswith("8 failed, 2 passed, 5 rerun in ")


def test_tests_without_a_report_are_run_by_the_second_session(project: Path) -> None:
    said = session(project, *WHOLE)
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 3 passed, 1 skipped, 1 rerun in ")
    assert ran(project, "unit") == 1


def test_a_session_that_was_killed_leaves_the_rest_to_the_second(project: Path) -> None:
    session(project, "tests/unit", "--reports-to", "reports")
    reports = project / "reports"
    lines = reports.read_text().splitlines(keepends=True)
    bad = next(at for at, line in enumerate(lines) if json.loads(line)["nodeid"].endswith("test_bad"))
    reports.write_text("".join(lines[: bad + 1]) + lines[bad + 1][:40])
    said = session(project, *WHOLE)
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 3 passed, 1 skipped, 1 rerun in ")
    assert ran(project, "unit") == 1
    assert ran(project, "lab") == 1


def test_the_second_session_waits_for_the_first(project: Path) -> None:
    session(project, "tests/unit", "--reports-to", "reports")
    late = (project / "reports").read_text()
    (project / "reports").write_text("")
    with (project / "reports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = threading.Event()

        def end() -> None:
            while not ran(project, "kernel"):
                done.wait(0.05)
            (project / "reports").write_text(late)
            fcntl.flock(lock, fcntl.LOCK_UN)

        ending = threading.Thread(target=end)
        ending.start()
        said = session(project, *WHOLE)
        ending.join()
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 3 passed, 1 skipped, 1 rerun in ")
    assert ran(project, "unit") == 1


def test_another_session_computes_when_the_one_that_shows_all_has_come_to_it(project: Path) -> None:
    (project / "tests/kernel/test_9.py").write_text(
        "from pathlib import Path\n\ndef test_early(): assert not Path('computes').exists()\n"
    )
    waits = "import time\nfrom pathlib import Path\n\ndef test_waits():\n    until = time.monotonic() + 60\n"
    waits += (
        "    while not Path('taken/tests+unit+test_b.py').exists() and time.monotonic() < until: time.sleep(0.02)\n"
    )
    (project / "tests/unit/test_d.py").write_text(waits)
    command = 'until [ -e computes ]; do sleep 0.05; done; exec "$0" -m pytest tests/unit/test_b.py --reports-to more'
    with (project / "more.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        another = subprocess.Popen(["sh", "-c", command, sys.executable], cwd=project, pass_fds=[lock.fileno()])
    said = session(project, *WHOLE, "--reports-from", "more")
    assert another.wait() == 1  # of its three tests one fails
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 5 passed, 1 skipped, 1 rerun in ")
    assert ran(project, "unit") == 1


BESIDE = "import pytest\nfrom pathlib import Path\n\npytestmark = pytest.mark.beside\n\n"


def test_what_may_run_beside_the_others_of_the_kernel_is_run_by_its_own_session(project: Path) -> None:
    (project / "tests/kernel/test_0.py").write_text(BESIDE + "def test_beside(): open('beside-ran', 'a').write('x')\n")
    session(project, "tests/kernel", "-m", "beside", "--reports-to", "own")
    assert (ran(project, "beside"), ran(project, "kernel")) == (1, 0)
    said = session(project, *WHOLE, "--reports-beside", "own", "-v")
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 4 passed, 1 skipped, 1 rerun in ")
    assert [ran(project, name) for name in ("beside", "kernel", "unit", "lab")] == [1, 1, 1, 1]
    order = [said.index(f"::test_{name} ") for name in ("first", "last", "beside", "good")]
    assert order == sorted(order)


def test_what_failed_beside_others_of_the_kernel_is_run_once_more_by_itself(project: Path) -> None:
    late = BESIDE + "def test_late(): assert Path('quiet').exists(), 'no core was free'\n"
    (project / "tests/kernel/test_0.py").write_text(late)
    session(project, "tests/kernel", "-m", "beside", "--reports-to", "own")
    (project / "quiet").touch()
    said = session(project, "tests/kernel", "tests/lab", "--reports-from", "reports", "--reports-beside", "own", "-v")
    assert said.splitlines()[-1].strip("= ").startswith("3 passed, 1 rerun in ")


def test_what_no_session_has_run_beside_is_run_by_the_one_that_shows_all(project: Path) -> None:
    (project / "tests/kernel/test_0.py").write_text(BESIDE + "def test_beside(): open('beside-ran', 'a').write('x')\n")
    session(project, *WHOLE, "--reports-beside", "own")
    assert [ran(project, name) for name in ("beside", "kernel")] == [1, 1]


def test_who_is_through_takes_what_may_run_beside_from_the_last_file_on(project: Path) -> None:
    for name, first in (("0", ""), ("9", "assert not Path('unit-ran').exists(); ")):
        (project / f"tests/kernel/test_{name}.py").write_text(
            BESIDE + f"def test_{name}(): {first}open('own-{name}-ran', 'a').write('x')\n"
        )
    session(project, "tests/kernel/test_0.py", "-m", "beside", "--reports-to", "own")
    with (project / "own.lock").open("w") as lock:  # its session goes on, and has not come to the other file
        fcntl.flock(lock, fcntl.LOCK_EX)

        def end() -> None:
            while not ran(project, "own-9"):
                time.sleep(0.02)
            fcntl.flock(lock, fcntl.LOCK_UN)

        ending = threading.Thread(target=end)
        ending.start()
        said = session(project, *WHOLE, "--reports-beside", "own", "-v")
        ending.join()
    assert [ran(project, name) for name in ("own-0", "own-9", "kernel", "unit")] == [1, 1, 1, 1]
    order = [said.index(f"::test_{name} ") for name in ("last", "9", "0", "good")]
    assert order == sorted(order)


def test_of_two_sessions_beside_one_may_leave_to_the_other_what_starts_no_ranks(project: Path) -> None:
    for name, mark in (("0", "beside"), ("1", "beside(ranks=False)"), ("2", "beside")):
        text = BESIDE.replace("beside", mark) + f"def test_{name}(): open('own-{name}-ran', 'a').write('x')\n"
        (project / f"tests/kernel/test_{name}.py").write_text(text)
    beside = ("tests/kernel", "-m", "beside", "--reports-to")
    session(project, *beside, "ranks", "--ranks-only", "--deselect", "tests/kernel/test_2.py")
    assert [ran(project, f"own-{name}") for name in "012"] == [1, 0, 0]
    session(project, *beside, "own")
    assert [ran(project, f"own-{name}") for name in "012"] == [1, 1, 1]
    said = session(project, *WHOLE, "--reports-beside", "own", "--reports-beside", "ranks")
    assert said.splitlines()[-1].strip("= ").startswith("1 failed, 6 passed, 1 skipped, 1 rerun in ")
    assert [ran(project, f"own-{name}") for name in "012"] == [1, 1, 1]


def test_what_is_to_be_apart_comes_when_no_ranks_run_beside_and_what_has_none_goes_on(project: Path) -> None:
    apart = "import pytest\nfrom pathlib import Path\n\n@pytest.mark.apart\n"
    apart += "def test_apart():\n    open('apart-ran', 'a').write('x')\n    assert Path('ranks-ran').exists()\n"
    wait = "\n    import time\n    until = time.monotonic() + 60\n"
    wait += "    while not Path('{}-ran').exists() and time.monotonic() < until: time.sleep(0.02)\n"
    none = BESIDE.replace("beside", "beside(ranks=False)") + "def test_none():" + wait.format("apart")
    some = (
        BESIDE
        + "def test_ranks():"
        + wait.format("kernel")
        + "    time.sleep(0.5)\n    open('ranks-ran', 'a').write('x')\n"
    )
    for name, text in (("0", none), ("1", some), ("2", apart)):
        (project / f"tests/kernel/test_{name}.py").write_text(text)
    with (project / "own.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:hypothesispytest",
            "tests/kernel",
            "-m",
            "beside",
            "--reports-to",
            "own",
        ]
        own = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True, pass_fds=[lock.fileno()])
        while not (project / "taken/tests+kernel+test_1.py").exists():
            assert own.poll() is None
            time.sleep(0.02)
    said = session(project, *WHOLE, "--reports-beside", "own", "-v")
    assert own.communicate()[0].splitlines()[-1].strip("= ").startswith("2 passed, ")
    order = [said.index(f"::test_{name} ") for name in ("first", "ranks", "apart", "none", "good")]
    assert order == sorted(order) and "test_apart PASSED" in said
