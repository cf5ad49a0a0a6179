"""What is done to a job inside a window is done when the observer says that it has begun, however long its probes took to load."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from labkit.jobs.run import _in_background
from labkit.verdicts import FAILED

OBSERVER = """
import sys, time
from pathlib import Path
print("2 ranks found; loading kernel probes", file=sys.stderr, flush=True)
time.sleep(0.4)
Path(sys.argv[1]).touch()
print("observing, 20 s to go", file=sys.stderr, flush=True)
time.sleep(0.2)
print("done" if Path(sys.argv[1]).exists() else "")
"""


def test_the_block_begins_with_the_window_and_gets_the_answer(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with _in_background([sys.executable, "-c", OBSERVER, str(began)]) as answer:
        assert began.exists()
        assert answer == []
    assert answer == ["", "", "done\n"]


def test_an_observer_that_gives_up_before_its_window_is_a_failure_and_holds_nobody_up() -> None:
    since = time.monotonic()
    with _in_background([sys.executable, "-c", "import sys; sys.stderr.write('no kernel\\n'); sys.exit(69)"]) as answer:
        pass
    assert answer[:2] == [FAILED, "exit code 69: no kernel"]
    assert time.monotonic() - since < 10
