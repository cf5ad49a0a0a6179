"""Each target in a process of its own: scripts/start.py campaignkit.fuzz.workers NAME… --most JSON --sources JSON --state DIR
--crashes DIR --seconds S --jobs N.

What is fuzzed is imported and instrumented once, which takes longer than a short run; each target gets a fork of that process. Libraries
in C are not instrumented: what the fuzzer sees of them is what our code does with their answers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import atheris

with atheris.instrument_imports(include=["rankscope"]):
    from campaignkit.fuzz.targets import TARGETS

from campaignkit.fuzz import counted
from campaignkit.fuzz.place import remove
from campaignkit.fuzz.target import Target, changed_bytes
from campaignkit.fuzz.watch import Watch

_LOOK_EVERY = 64  # inputs between two looks at the clock
_SAVE_EVERY_S = 5.0
_MOST_ADDRESSES_BYTES = 4 << 30  # what would take the machine's memory fails instead
_EDGES = re.compile(rb"\bcov: (\d+)")  # in the fuzzer's log


@dataclass(frozen=True, slots=True)
class Limits:
    """When a worker ends. inputs: with those that were counted before. seconds: of the processor, in this run."""

    inputs: int
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+", choices=[target.name for target in TARGETS])
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--crashes", type=Path, required=True)
    parser.add_argument("--most", type=json.loads, required=True, help="inputs by target")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--sources", type=json.loads, required=True, help="digest by target of what it reaches")
    args = parser.parse_args()
    most = {name: Limits(inputs, args.seconds) for name, inputs in args.most.items()}
    Workers(args.state, args.crashes, most, args.sources).run(
        [target for target in TARGETS if target.name in args.names], args.jobs
    )


class Workers:
    """Some processes at a time, in the order of the targets. SIGTERM ends them, each after the input that it has."""

    def __init__(self, state: Path, crashes: Path, most: Mapping[str, Limits], sources: Mapping[str, str]) -> None:
        self._state, self._crashes, self._most = state, crashes, most
        self._sources = sources
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
            fuzz(target, self._sources[target.name], state, self._crashes, self._most[target.name])
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _ended(self, name: str, code: int) -> None:
        """A worker ends with 0 whatever it found; else the process itself broke, and left its last input."""
        folder = self._state / name
        known = counted.read(folder)
        log = (folder / "log").read_bytes()
        known.edges = max([known.edges, *map(int, _EDGES.findall(log))])
        known.write(folder)
        for place, failed in known.failures.items():
            print(f"{name}: {place}: {failed}", flush=True)
        if code == 0:
            return
        words = log.decode(errors="replace").strip().splitlines()[-1:] or ["no words"]
        known.failures[f"the process ended with {code}"] = words[0][:300]
        known.write(folder)
        print(f"{name}: the process ended with {code}: {words[0][:300]}", flush=True)
        for left in folder.glob("hard-*"):
            (self._crashes / name).mkdir(parents=True, exist_ok=True)
            left.replace(self._crashes / name / left.name.rpartition("-")[2][:16])


def fuzz(target: Target, source: str, state: Path, crashes: Path, most: Limits) -> NoReturn:
    """Go on where the counts in `state` end, if they are of that source; the process ends with it."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES_BYTES, _MOST_ADDRESSES_BYTES))
    known = counted.read(state, source)
    before_s = known.cpu_seconds
    watch = Watch(target, known, crashes)
    ending = False

    def end(*_: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    began = saved = time.process_time()

    def one(data: bytes) -> None:
        nonlocal saved
        watch.feed(data)
        if known.inputs % _LOOK_EVERY and known.inputs < most.inputs:
            return
        now = time.process_time()
        over = ending or known.inputs >= most.inputs or now - began >= most.seconds
        if over or now - saved > _SAVE_EVERY_S:
            saved, known.cpu_seconds = now, before_s + now - began
            known.write(state)
        if over:
            remove()
            os._exit(0)  # the fuzzer's own loop never returns; it has written each input worth keeping

    own = target.seeds()
    longest = changed_bytes(own, target.longest_bytes)
    for name, contents in {"seeds": [*own, *target.repeated(longest)], "corpus": []}.items():
        folder = state / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (folder / f"{number:03}").write_bytes(content)
    options = [
        f"-max_len={longest}",
        "-verbosity=1",
        "-print_final_stats=0",
        f"-artifact_prefix={state}/hard-",
    ]
    options += ["-handle_int=0", "-handle_term=0", "-rss_limit_mb=3000", "-timeout=100000"]
    if target.words:
        dictionary = state / "words"
        dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
        options.append(f"-dict={dictionary}")
    atheris.Setup([sys.argv[0], *options, str(state / "corpus"), str(state / "seeds")], one)
    watch.start_clock()
    if not known.inputs:
        for seed in target.all_seeds():  # at their full length
            watch.feed(seed)
    atheris.Fuzz()
    raise AssertionError("the fuzzer's loop has ended")


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
