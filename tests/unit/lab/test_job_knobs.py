"""What makes a function of an ordinary job slow: a thread that is ordered in a process that was forked, and ordered again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parents[3] / "scripts/labkit/jobs/programs"
FORKED = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import knobs
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
knobs.begin(sys.argv[2], 0)
control = knobs.slow.control
for number, seconds in enumerate((0.001, 0.002)):
    control.write_text(json.dumps({"function": "export", "manner": "busy", "seconds": seconds}))
    os.utime(control, ns=(number + 1, number + 1))
    knobs.step(number)
    time.sleep(0.03)
worker = os.fork()  # as a loader's: it follows the same file, and exports nothing
if worker:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
os.utime(control, ns=(9, 9))
knobs.slow.look()
os._exit(0)
"""


def ended(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", source, str(PROGRAMS), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_forked_rank_exports_as_often_as_it_is_ordered_and_its_workers_do_not(tmp_path: Path) -> None:
    done = ended(FORKED, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


STARTED_ANEW = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
import knobs
if len(sys.argv) == 4:  # as a loader worker by spawn: it knows of its rank nothing but the environment
    knobs.slow["decode"]()
    print(knobs.slow._function)
    sys.exit()
knobs.begin(sys.argv[2], 0)
knobs.slow.control.write_text(json.dumps({"function": "decode", "manner": "sleep", "seconds": 0.001}))
sys.exit(subprocess.run([sys.executable, "-c", open(sys.argv[2] + "/source").read(), *sys.argv[1:3], "worker"]).returncode)
"""


def test_workers_that_are_started_anew_follow_their_rank(tmp_path: Path) -> None:
    (tmp_path / "source").write_text(STARTED_ANEW)
    done = ended(STARTED_ANEW, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("decode\n", "", 0)
