"""Libraries of targets whose files are not what or where they were, or whose file system is dead: timed or left out, never waited for."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from campaignkit.chaos.job import PROGRAMS
from rankscope.probes.bpf import loader, ring
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.probe import CallProbe
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow
from rankscope.probes.mapped.reader import DEADLINE_S, READER
from rankscope.unwinder.interpreter.find import find_interpreter

pytestmark = pytest.mark.beside

Start = Callable[..., "subprocess.Popen[str]"]
RING_PAGES = 64
LIBRARY = "#include <unistd.h>\nint rs_lab_call(int n) { usleep(1000); return n + 3; }\n"
TABLE = (CallRow("librslab", "rs_lab_call", "call", "wait", 1),)
CALLER = """
    import ctypes, os, subprocess, sys
    folder, library, away = sys.argv[1:4]
    if away == "away":  # a mount namespace of its own, with a folder that nobody else sees
        libc = ctypes.CDLL(None)
        assert libc.unshare(0x20000) == 0
        assert libc.mount(b"none", b"/", None, (1 << 18) | (1 << 14), None) == 0
        assert libc.mount(b"none", folder.encode(), b"tmpfs", 0, None) == 0
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=sys.argv[5], text=True, check=True)
    call = ctypes.CDLL(library).rs_lab_call
    if sys.argv[4] != "stays":
        os.unlink(library)
    if sys.argv[4] == "fifo":
        os.mkfifo(library)
    if sys.argv[4] == "link":
        os.symlink("/etc/shadow", library)
    print("ready", flush=True); sys.stdin.readline()
    for i in range(17): call(i)
    sys.stdin.readline()
"""


@pytest.fixture
def module() -> Iterator[Module]:
    loaded = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": RING_PAGES}, generated=programs(TABLE))
    yield loaded
    loaded.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    folder = tmp_path / "libraries"
    folder.mkdir()
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", folder / "librslab.so.1", "-xc", "-"], input=LIBRARY, text=True, check=True
    )
    return folder / "librslab.so.1"


def _go(process: subprocess.Popen[str], module: Module) -> int:
    events = ring.Ring(module.maps["rs_events"].map_fd, RING_PAGES * 4096)
    module.maps["rs_targets"][ctypes.c_uint32(process.pid)] = ctypes.c_uint32(1)
    process.communicate("go\n\n", timeout=60)
    drained = events.drain()
    events.close()
    return int((drained["type"] == ring.CALL).sum())


@pytest.mark.parametrize("becomes", ["stays", "nothing", "fifo", "link"])
@pytest.mark.parametrize("where", ["here", "away"])
@pytest.mark.parametrize("at_once", [True, False])
def test_calls_are_timed_whatever_became_of_the_librarys_name(
    program: Start, module: Module, library: Path, where: str, becomes: str, at_once: bool
) -> None:
    module.at_once = at_once
    process = program(CALLER, str(library.parent), str(library), where, becomes, LIBRARY)
    probe = CallProbe(module, TABLE)
    began = time.monotonic()
    probe.watch([process.pid])
    assert time.monotonic() - began < 2
    assert probe.notes == []
    assert _go(process, module) == 17


@pytest.fixture
def dead(tmp_path: Path, library: Path) -> Iterator[Callable[[], Path]]:
    """A file system with the library, which answers until the function that it is given as is called."""
    place = tmp_path / "dead"
    place.mkdir()
    server = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "fuse.py"), str(place), str(library), "whole"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline().strip() == "ready"

    def stop() -> Path:
        server.send_signal(signal.SIGSTOP)
        return place / library.name

    yield stop
    READER.close()
    server.kill()
    server.wait()
    subprocess.run(["umount", "-l", place], check=True)


def test_a_library_on_a_dead_file_system_is_left_out_and_the_rest_is_timed(
    program: Start, module: Module, library: Path, dead: Callable[[], Path], tmp_path: Path
) -> None:
    asleep = program(CALLER, "", str(tmp_path / "dead" / library.name), "here", "stays")
    awake = program(CALLER, "", str(library), "here", "stays")
    dead()
    probe = CallProbe(module, TABLE)
    began = time.monotonic()
    probe.watch([asleep.pid, awake.pid])
    probe._looked_at.clear()
    probe.watch([asleep.pid])
    assert DEADLINE_S < time.monotonic() - began < DEADLINE_S + 2
    assert any("did not answer" in note for note in probe.notes)
    assert any("does not answer" in note for note in probe.notes)  # not asked again
    assert _go(awake, module) == 17
    os.kill(asleep.pid, signal.SIGKILL)


def test_the_command_ends_while_a_file_system_is_dead(
    program: Start, library: Path, dead: Callable[[], Path], tmp_path: Path
) -> None:
    """The child that waits in the kernel keeps nobody: not the process, nor who reads its output."""
    asleep = program(CALLER, "", str(tmp_path / "dead" / library.name), "here", "stays")
    dead()
    text = (
        "import sys\nfrom rankscope.probes.calls.probe import mapped_libraries\n"
        f"(library,) = mapped_libraries({asleep.pid}, ('librslab',))\n"
        "try: library.open()\nexcept OSError as error: print(error)\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=20)
    assert "did not answer" in done.stdout
    assert time.monotonic() - began < DEADLINE_S + 3
    os.kill(asleep.pid, signal.SIGKILL)


def test_the_interpreter_is_found_when_its_file_was_replaced_by_a_fifo(tmp_path: Path) -> None:
    python = tmp_path / "bin/python3.11"
    python.parent.mkdir()
    python.write_bytes(Path(sys.executable).resolve().read_bytes())
    python.chmod(0o755)
    text = "import time; print('ready', flush=True); time.sleep(60)"
    home = {"PYTHONHOME": sys.base_prefix, "LD_LIBRARY_PATH": f"{sys.base_prefix}/lib"}
    process = subprocess.Popen([python, "-c", text], stdout=subprocess.PIPE, text=True, env=os.environ | home)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    python.unlink()
    os.mkfifo(python)
    began = time.monotonic()
    assert find_interpreter(process.pid).version == sys.version_info[:2]
    assert time.monotonic() - began < 1
    process.kill()
    process.wait()


def test_a_window_is_recorded_of_a_rank_whose_library_was_replaced_by_a_fifo(tmp_path: Path) -> None:
    """That kept the command waiting for ever."""
    library = tmp_path / "libtorch_cpu.so"
    text = "int _ZN4gloo9allreduceERNS_16AllreduceOptionsE(int n) { return n; }\n" + LIBRARY
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=text, text=True, check=True)
    (tmp_path / "train.py").write_text(textwrap.dedent(CALLER))
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29777"}
    job = subprocess.Popen(
        [sys.executable, str(tmp_path / "train.py"), str(tmp_path), str(library), "here", "fifo"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | rank,
    )  # fmt: skip
    assert job.stdout is not None
    assert job.stdout.readline().strip() == "ready"
    assert library.is_fifo()
    command = [
        sys.executable,
        "-m",
        "rankscope.diagnose.face.cli.main",
        "record",
        "--window",
        "2",
        "--json",
        "--pid",
        str(job.pid),
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (window,) = json.loads(done.stdout)
    assert window["ranks"] == 1
    assert not any("not timed" in note or "no Python stacks" in note for note in window["notes"]), window["notes"]
    job.kill()
    job.wait()
