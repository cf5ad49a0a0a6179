"""Test what each source can give on this host before there is a job, by loading and attaching every program.

Programs are attached to a file of our own. `python -m rankscope.observer.live.tried` prints the
result as JSON, for processes that must not load programs themselves. Needs root. Leaves nothing
behind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from rankscope.observer.live import kernel_probes, sources
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.sources import Seen, Source, SourceState, States, states
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.scratch import scratch
from rankscope.probes.calls.programs import program_rows, programs
from rankscope.probes.elf.local import LocalFile

_PAGE_BYTES = 4096  # of a file that nothing maps: its content never runs
_OFFSET = 64
_BODIES = {one.name: one.of for one in programs().variants}  # program → compiled program


def tried() -> States:
    """Load everything, detach it again and return the states. Raises as kernel_probes.load."""
    probes = kernel_probes.load(hz=99)
    try:
        return of_host(probes)
    finally:
        probes.close()


def of_host(probes: KernelProbes) -> States:
    """Return the states of the sources, given loaded probes with nothing to watch."""
    lacked = (SourceState(source, Seen.NOT, "left out") for source in Source if sources.lacks(source))
    return states([*sources.of_programs(probes.missing), *_of_calls(probes), *lacked])


def _of_calls(probes: KernelProbes) -> Iterator[SourceState]:
    """Yield the states of timed calls: part if those of some libraries are refused, not if those of
    all are.
    """
    known, refused = sources.programs(), _refused_calls(probes)
    if sources.SITE in refused:
        yield SourceState(Source.COLLECTIVES, Seen.NOT, f"{sources.SITE} is not attached: {refused[sources.SITE]}")
    families: dict[Source, set[str]] = {}
    lost: dict[Source, dict[str, str]] = {}
    for name, row in program_rows():
        families.setdefault(known[name], set()).add(row.family)
        if (why := refused.get(_body_of(name))) is not None:
            lost.setdefault(known[name], {}).setdefault(row.family, f"{name} is not attached: {why}")
    for source, found in lost.items():
        seen = Seen.NOT if found.keys() == families[source] else Seen.PART
        yield SourceState(
            source, seen, f"calls of {', '.join(sorted(found))} are not timed: {next(iter(found.values()))}"
        )


def _body_of(name: str) -> str:
    """Return the name of the compiled program that a program is a variant of; its own if it is none."""
    return _BODIES.get(name, name)


def _refused_calls(probes: KernelProbes) -> dict[str, str]:
    """Try to attach one program of each compiled body, and disabled ones; return refused bodies
    with the reason.
    """
    one_of = {body: name for name, body in reversed(_BODIES.items())} | {sources.SITE: sources.SITE}
    one_of |= {_body_of(name): name for name in probes.module.left_out if name in _BODIES}
    refused = {}
    with scratch() as folder:
        place = folder.path / "calls"
        place.write_bytes(bytes(_PAGE_BYTES))
        file = LocalFile(place)
        for body, name in one_of.items():
            try:
                probes.module.attach_uprobes(name, file, [_OFFSET], on_return=name.startswith("rs_leave_"))
            except (OSError, ValueError, RankscopeError) as error:
                refused[body] = str(error).splitlines()[0]
    return refused


def main() -> int:
    """Print the states as JSON and return 0; where nothing can be loaded, print why and return an exit code.

    It is that of the error, such as 69 where the kernel lacks BPF, 77 without root.
    """
    try:
        found = tried()
    except RankscopeError as error:
        print(json.dumps({"refused": str(error)}))
        return error.exit_code
    print(json.dumps({one.source.value: [one.seen.value, one.why] for one in found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
