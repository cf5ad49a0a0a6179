"""Recorded memory of live interpreters: the few kilobytes that listing threads, walking and naming them touch.

Run as a program it makes a recording:  python tests/unit/unwinder/recording.py PYTHON FILE.json.gz
Start PYTHON from a neutral place: the paths of its standard library are part of the recording.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostwalk import HostWalk
from images import Chunks

from rankscope.unwinder.interpreter.find import Interpreter, find_interpreter
from rankscope.unwinder.interpreter.memory import Memory, ProcessMemory
from rankscope.unwinder.interpreter.offsets import DEBUG_OFFSETS_BYTES, TABLES, parse_debug_offsets
from rankscope.unwinder.interpreter.threads import list_threads
from rankscope.unwinder.names.code import Symboliser

HERE = Path(__file__).parent


class Recorder:
    """Passes reads on and remembers them."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.pieces: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        data = self._memory.read(address, size)
        if size > len(self.pieces.get(address, b"")):
            self.pieces[address] = data
        return data


@dataclass(frozen=True)
class Recording:
    interpreter: Interpreter
    memory: Chunks
    tids: tuple[int, ...]
    expected: dict[str, list[list[Any]]]  # tid -> [name, file, first line, line], innermost first

    def proc_tree(self, folder: Path) -> Path:
        """A root folder whose /proc shows the recorded process's threads."""
        pid = self.interpreter.pid
        for place in (folder / f"proc/{pid}", *(folder / f"proc/{pid}/task/{tid}" for tid in self.tids)):
            place.mkdir(parents=True)
            (place / "status").write_text(f"Name:\tpython\nTgid:\t{pid}\nNSpid:\t{place.name}\n")
        return folder


_NUMBERS = ("pid", "version_hex", "runtime_address", "none_address", "code_type_address")


def load(path: Path) -> Recording:
    with gzip.open(path, "rt") as file:
        content = json.load(file)
    memory = Chunks([(int(at, 16), bytes.fromhex(data)) for at, data in content["memory"].items()])
    number = {name: int(content[name]) for name in _NUMBERS}
    minor = content["minor"]
    offsets = TABLES.get(minor)
    if offsets is None:
        found = parse_debug_offsets(memory.read(number["runtime_address"], DEBUG_OFFSETS_BYTES))
        assert found is not None
        assert found.offsets is not None
        offsets = found.offsets
    interpreter = Interpreter(
        pid=number["pid"],
        start_ticks=0,
        version=(3, minor),
        version_hex=number["version_hex"],
        runtime_address=number["runtime_address"],
        offsets=offsets,
        build=content["build"],
        free_threaded=False,
        path="",
        how="recorded",
        none_address=number["none_address"],
        code_type_address=number["code_type_address"],
        gil_address=0,
        gil_bytes=0,
    )
    return Recording(interpreter, memory, tuple(content["tids"]), content["expected"])


def record(python: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walk = HostWalk.build(Path(folder))
    # A neutral name, since it becomes part of the recording.
    script = Path("/tmp/job/train.py")
    script.parent.mkdir(exist_ok=True)
    script.write_text((HERE / "known_program.py").read_text())
    process = subprocess.Popen([python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.3)  # until all threads have got where they wait
        with ProcessMemory(process.pid) as memory:
            content = _content(process.pid, Recorder(memory), walk)
    finally:
        process.kill()
        process.communicate()
        script.unlink()
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        file.write(json.dumps(content).encode())
    print(target, target.stat().st_size, "bytes;", {tid: len(s) for tid, s in content["expected"].items()})


def _content(pid: int, recorder: Recorder, walk: HostWalk) -> dict[str, Any]:
    interpreter = find_interpreter(pid)
    recorder.read(interpreter.runtime_address, DEBUG_OFFSETS_BYTES)
    symbols = Symboliser(recorder, interpreter.offsets, interpreter.code_type_address)
    expected = {}
    for thread in list_threads(interpreter, recorder):
        walked = walk.walk(interpreter.kernel_record(), recorder, thread.tstate_address, thread.thread_id)
        frames = [symbols.resolve(*frame) for frame in walked.frames]
        expected[str(thread.host_tid)] = [[f.name, f.file, f.first_line, f.line] for f in frames]
    return {
        "minor": interpreter.version[1],
        "build": interpreter.build,
        **{name: getattr(interpreter, name) for name in _NUMBERS},
        "tids": [int(tid) for tid in expected],
        "expected": expected,
        "memory": {f"{at:x}": data.hex() for at, data in recorder.pieces.items()},
    }


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
