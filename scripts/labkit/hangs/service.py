"""A running `rankscope watch`, and what it has said."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from labkit.machine.shell import LabError, rankscope

_LEARNS_S = 60.0


class Service:
    """Use as a context manager; it ends with it. Of what it says only this job counts: others may run on the host."""

    def __init__(self, folder: Path, job: str, *more: str) -> None:
        """`more`: options of the command."""
        self._folder, self._job, self._more = folder, job, more
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Service:
        self._folder.mkdir(parents=True, mode=0o700)
        command = [rankscope(), "watch", "--json", "--no-routine", "--state", str(self._folder / "state")]
        with (self._folder / "said").open("wb") as said, (self._folder / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, "--history", str(self._folder / "history"), *self._more],
                stdout=said,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def resident_bytes(self) -> int:
        """Memory of the service now."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def events(self) -> list[dict[str, Any]]:
        lines = (self._folder / "said").read_text().splitlines(keepends=True)
        told = (json.loads(line) for line in lines if line.endswith("\n"))
        return [event for event in told if event["job"] == self._job]

    def wait_until_it_knows_the_step(self) -> None:
        if not self.wait_for(lambda events: any("a step takes" in one["words"] for one in events), _LEARNS_S):
            errors = (self._folder / "stderr").read_text()[-500:]
            raise LabError(f"the service has not learnt the job's step in {_LEARNS_S:.0f} s: {errors}")

    def wait_for(self, there: Callable[[list[dict[str, Any]]], bool], seconds: float, after: int = 0) -> bool:
        """Whether what it said beyond the first `after` events became what is waited for, in so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise LabError(f"the service has ended: {(self._folder / 'stderr').read_text()[-500:]}")
            if there(self.events()[after:]):
                return True
            time.sleep(0.1)
        return False
