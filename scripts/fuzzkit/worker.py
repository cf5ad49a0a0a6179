"""One target in a process of its own: python -m fuzzkit.worker NAME --state DIR --crashes DIR --inputs N --seconds S.

Only what is fuzzed is instrumented; libraries in C are not, and what the fuzzer sees of them is what our code does with their answers.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rankscope"]):
    from fuzzkit.targets import TARGETS

from fuzzkit import record
from fuzzkit.place import remove
from fuzzkit.target import changed_bytes
from fuzzkit.watch import Watch

_LOOK_EVERY = 64  # inputs between two looks at the clock
_SAVE_EVERY_S = 5.0
_MOST_ADDRESSES_BYTES = 4 << 30  # what would take the machine's memory fails instead


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[target.name for target in TARGETS])
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--crashes", type=Path, required=True)
    parser.add_argument("--inputs", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES_BYTES, _MOST_ADDRESSES_BYTES))
    target = next(target for target in TARGETS if target.name == args.name)
    known = record.read(args.state)
    before_s = known.cpu_seconds
    watch = Watch(target, known, args.crashes)
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
        if known.inputs % _LOOK_EVERY and known.inputs < args.inputs:
            return
        now = time.process_time()
        over = ending or known.inputs >= args.inputs or now - began >= args.seconds
        if over or now - saved > _SAVE_EVERY_S:
            saved, known.cpu_seconds = now, before_s + now - began
            known.write(args.state)
        if over:
            remove()
            os._exit(0)  # the fuzzer's own loop never returns; it has written each input worth keeping

    own = target.seeds()
    longest = changed_bytes(own, target.longest_bytes)
    for name, contents in {"seeds": [*own, *target.repeated(longest)], "corpus": []}.items():
        folder = args.state / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            (folder / f"{number:03}").write_bytes(content)
    options = [
        f"-max_len={longest}",
        "-verbosity=0",
        "-print_final_stats=0",
        f"-artifact_prefix={args.state}/hard-",
    ]
    options += ["-handle_int=0", "-handle_term=0", "-rss_limit_mb=3000", "-timeout=100000"]
    if target.words:
        dictionary = args.state / "words"
        dictionary.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
        options.append(f"-dict={dictionary}")
    atheris.Setup([sys.argv[0], *options, str(args.state / "corpus"), str(args.state / "seeds")], one)
    watch.start_clock()
    if not known.inputs:
        for seed in target.all_seeds():  # at their full length
            watch.feed(seed)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
