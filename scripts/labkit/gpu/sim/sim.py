"""The emulated GPU machine: start it, put ranks and an observer on it, give its parts faults.

machine = Machine(Path("/dev/shm/x"), gpus=8, per_host=4)
machine.start()
subprocess.Popen([...], env=os.environ | machine.job_environment(rank))
subprocess.run(machine.observer_command(["rankscope", "record", ...]))
machine.gpu(2).set(clock_hz=900e6, throttle_reasons=0x40)
machine.stop()
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from labkit.gpu.sim import sysfs
from labkit.gpu.sim.build import LibraryFolder, build
from labkit.machine.shell import REPOSITORY, LabError

__all__ = ["LibraryFolder", "Machine", "Part", "build"]

CACHE = REPOSITORY / "build" / "gpusim"
_START_S = 20.0
_WORDS = {"active": 1.0, "up": 1.0, "down": 0.0}


class Part:
    """A GPU or a NIC of the machine. Names of settings: the contract's, all in gpusim.h (GS_GPU_SETTINGS, GS_NIC_SETTINGS)."""

    def __init__(self, machine: Machine, index: int, nic: bool) -> None:
        self._machine, self._index, self._nic = machine, index, nic

    def set(self, **settings: float | bool | str) -> None:
        """Change settings, at once. `xid=79` appends an event. Raises ValueError for a name that does not exist."""
        for name, value in settings.items():
            number = _WORDS[value] if isinstance(value, str) else float(value)
            if name == "xid" and not self._nic:
                self._machine.core.gs_xid(self._machine.state, self._index, int(number))
                self._machine.log(f"NVRM: Xid (PCI:{sysfs.gpu_address(self._index)[:-2]}): {int(number)}, emulated")
            elif self._machine.core.gs_set(self._machine.state, self._index, int(self._nic), name.encode(), number):
                raise ValueError(f"a {'NIC' if self._nic else 'GPU'} has no setting {name!r}")

    def get(self, name: str) -> float:
        """A setting, or a sum since the start (GS_GPU_SUMS, GS_NIC_SUMS). Raises ValueError."""
        value = float(self._machine.core.gs_get(self._machine.state, self._index, int(self._nic), name.encode()))
        if math.isnan(value):
            raise ValueError(f"nothing is called {name!r}")
        return value


class Machine:
    """One machine in `folder`: the state file, the tree sys/, and gpusimd while it runs. Best on a RAM file system."""

    def __init__(self, folder: Path, gpus: int = 8, per_host: int = 4) -> None:
        self.folder = folder.resolve()
        self.gpus, self.per_host = gpus, per_host
        self.libraries = build(CACHE)
        self.state_path = self.folder / "state"
        self.sys = self.folder / "sys"
        self.core = _core(self.libraries)
        self.state: int | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> Machine:
        """Raises LabError. What an earlier machine left in the folder is removed. gpusimd ends with the thread that calls this."""
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "scratch").mkdir(exist_ok=True)
        self.clear_log()
        sysfs.build(self.sys, self.gpus, self.per_host)
        if self.core.gs_create(os.fsencode(self.state_path), self.gpus, self.per_host):
            raise LabError(f"cannot make {self.state_path}")
        self.state = self.core.gs_open(os.fsencode(self.state_path))
        addresses = [sysfs.gpu_address(index) for index in range(self.gpus)]
        self._daemon = subprocess.Popen([self.libraries.daemon, self.state_path, self.sys, *addresses])
        deadline = time.monotonic() + _START_S
        while not self.core.gs_ready(self.state):
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise LabError("gpusimd did not start")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """End gpusimd and remove the machine's files. Jobs are their starter's to end."""
        if self._daemon is not None:
            self._daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._daemon.wait(5)
            if self._daemon.poll() is None:
                self._daemon.kill()
                self._daemon.wait()
            self._daemon = None
        if self.state is not None:
            self.core.gs_close(self.state)
            self.state = None
        shutil.rmtree(self.sys, ignore_errors=True)
        for name in ("state", "state.lives", "kmsg"):
            (self.folder / name).unlink(missing_ok=True)
        for empty in (self.folder / "scratch", self.folder):
            with contextlib.suppress(OSError):
                empty.rmdir()

    def __enter__(self) -> Machine:
        return self if self.state is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def daemon_pid(self) -> int:
        """Of gpusimd, 0 while it does not run."""
        return self._daemon.pid if self._daemon is not None else 0

    def log(self, text: str) -> None:
        """A line in the kernel's log, as the observer sees it (dev-kmsg: priority, sequence, microseconds, flags; text)."""
        with (self.folder / "kmsg").open("a") as file:
            file.write(f"3,{file.tell()},{time.monotonic_ns() // 1000},-;{text}\n")

    def clear_log(self) -> None:
        """Forget what was logged."""
        (self.folder / "kmsg").write_text("")

    def gpu(self, index: int) -> Part:
        return self._part(index, nic=False)

    def nic(self, index: int) -> Part:
        return self._part(index, nic=True)

    def environment(self) -> dict[str, str]:
        """For a process that shall find the emulated libraries."""
        path = [str(self.libraries.path), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        files = f"{self.state_path}:{self.state_path}.lives"  # they stand for devices, which whoever observes has opened for it
        return {"LD_LIBRARY_PATH": ":".join(path), "GPUSIM_STATE": str(self.state_path), "RANKSCOPE_DEVICES": files}

    def job_environment(self, rank: int) -> dict[str, str]:
        """For the process that is rank `rank` and has the GPU of that number."""
        return {**self.environment(), "CUDA_VISIBLE_DEVICES": str(rank % self.gpus)}

    def observer_command(self, argv: Sequence[str | Path]) -> list[str]:
        """`argv` on this machine: emulated NVML, and a /sys of its own with the emulated devices in it. Needs root; keeps the pid."""
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        words = [str(word) for word in argv]
        return [str(self.libraries.enter), str(self.sys), str(self.folder / "scratch"), "env", *variables, *words]

    def _part(self, index: int, nic: bool) -> Part:
        if not 0 <= index < self.gpus:
            raise ValueError(f"there is no number {index}")
        if self.state is None:
            raise LabError("the emulated machine is not running")
        return Part(self, index, nic)


def _core(libraries: LibraryFolder) -> ctypes.CDLL:
    core = ctypes.CDLL(str(libraries.core))
    core.gs_create.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
    core.gs_open.argtypes, core.gs_open.restype = (ctypes.c_char_p,), ctypes.c_void_p
    core.gs_close.argtypes, core.gs_ready.argtypes = (ctypes.c_void_p,), (ctypes.c_void_p,)
    core.gs_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_double)
    core.gs_get.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p)
    core.gs_get.restype = ctypes.c_double
    core.gs_xid.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    return core
