"""Each target in a process of its own: scripts/start.py fuzzkit.workers NAME… --state DIR --crashes DIR --inputs N --seconds S --jobs N
--sources JSON.

What is fuzzed is imported once, which takes longer than a short run: the instrumentation is put into it meanwhile. Each target
gets a fork of that process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rankscope"]):
    from fuzzkit.targets import TARGETS

from fuzzkit import record
from fuzzkit.target import Target
from fuzzkit.worker import Limits, fuzz


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=[target.name for target in TARGETS])
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--crashes", type=Path, required=True)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--sources", type=json.loads, required=True, help="by target, what it runs (`sources.py`)")
    parser.add_argument("--elsewhere", type=json.loads, default={}, help="inputs by target that other runs had")
    args = parser.parse_args()
    Workers(args.state, args.crashes, Limits(args.inputs, args.seconds), args.sources, args.elsewhere).run(
        [target for target in TARGETS if target.name in args.names], args.jobs
    )


class Workers:
    """Some processes at a time, in the order of the targets. SIGTERM ends them, each after the input that it has."""

    def __init__(
        self, state: Path, crashes: Path, most: Limits, sources: Mapping[str, str], elsewhere: Mapping[str, int]
    ) -> None:
        self._state, self._crashes, self._most = state, crashes, most
        self._sources, self._elsewhere = sources, elsewhere
        self._running: dict[int, Target] = {}
        self._ending = False

    def run(self, wanted: list[Target], jobs: int) -> None:
        signal.signal(signal.SIGTERM, self._end)
        waiting = list(wanted)
        while waiting or self._running:
            while waiting and len(self._running) < jobs and not self._ending:
                self._start(waiting.pop(0))
            if not self._running:
                return
            pid, status = os.wait()
            self._ended(self._running.pop(pid).name, os.waitstatus_to_exitcode(status))

    def _most_of(self, target: Target) -> Limits:
        return replace(self._most, inputs=self._most.inputs - self._elsewhere.get(target.name, 0))

    def _end(self, *_: object) -> None:
        self._ending = True
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)

    def _start(self, target: Target) -> None:
        state = self._state / target.name
        state.mkdir(parents=True, exist_ok=True)
        # Until the child has its own, and we know of it, a signal waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        pid = os.fork()
        if pid:
            self._running[pid] = target
        signal.signal(signal.SIGTERM, self._end if pid else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if not pid:
            self._work(target, state)

    def _work(self, target: Target, state: Path) -> None:
        """In the child."""
        try:
            with (state / "log").open("wb") as log:
                os.dup2(log.fileno(), sys.stderr.fileno())
            fuzz(target, self._sources[target.name], state, self._crashes, self._most_of(target))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _ended(self, name: str, code: int) -> None:
        """A worker ends with 0 whatever it found; else the process itself broke, and left its last input."""
        folder = self._state / name
        known = record.read(folder)
        for place, failed in known.failures.items():
            print(f"{name}: {place}: {failed}", flush=True)
        if code == 0:
            return
        words = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:] or ["no words"]
        known.failures[f"the process ended with {code}"] = words[0][:300]
        known.write(folder)
        print(f"{name}: the process ended with {code}: {words[0][:300]}", flush=True)
        for left in folder.glob("hard-*"):
            (self._crashes / name).mkdir(parents=True, exist_ok=True)
            left.replace(self._crashes / name / left.name.rpartition("-")[2][:16])


if __name__ == "__main__":
    main()
