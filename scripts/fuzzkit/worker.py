"""One target in the process that calls, which ends with it.

Only what is fuzzed is instrumented; libraries in C are not, and what the fuzzer sees of them is what our code does with their answers.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import atheris

from fuzzkit import record
from fuzzkit.place import remove
from fuzzkit.target import Target, changed_bytes
from fuzzkit.watch import Watch

_LOOK_EVERY = 64  # inputs between two looks at the clock
_SAVE_EVERY_S = 5.0
_MOST_ADDRESSES_BYTES = 4 << 30  # what would take the machine's memory fails instead


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends. inputs: of the target, with those of earlier runs. seconds: of the processor, in this run."""

    inputs: int
    seconds: float


def fuzz(target: Target, source: str, state: Path, crashes: Path, most: Limits) -> NoReturn:
    """Goes on where the record in `state` ends, if it is of that source; the process ends with it."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES_BYTES, _MOST_ADDRESSES_BYTES))
    known = record.begun(state, source)
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
        "-verbosity=0",
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
