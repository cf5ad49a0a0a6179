"""The second start on a host does not compile again, and what it takes in its place is what the first one made."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rankscope.observer.live import kernel_probes
from rankscope.probes.base import abilities
from rankscope.probes.bpf import btf, cache, loader, perf_events, programs
from rankscope.probes.bpf.compiler import compiled
from rankscope.probes.bpf.compiler.compiled import Compiled
from rankscope.probes.bpf.module import Module

pytestmark = pytest.mark.beside(ranks=False)

ENTRIES = 3001  # more than are asked for at once
SOURCE = f"""
#include "kernel.bpf.h"
struct place {{ u32 number; u16 pair[2]; }};
struct content {{ u64 sum; char word[8]; }};
BPF_HASH(places, struct place, struct content, {ENTRIES + 100});
BPF_PERCPU_ARRAY(counts, u64, 3);
BPF_RINGBUF_OUTPUT(events, 1);
int count_one(struct pt_regs *ctx)
{{
	int slot = 1;
	u64 *count = counts.lookup(&slot);
	if (count)
		*count += 1;
	return 0;
}}
int never_ends(struct pt_regs *ctx)
{{
	u64 sum = 0;
	for (u64 i = 0; i < bpf_ktime_get_ns(); i++)
		sum += bpf_get_current_pid_tgid();
	return sum;
}}
"""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of our own, where every folder above it is root's."""
    own = Path(f"var/cache/rankscope-test-{os.getpid()}")
    monkeypatch.setattr(cache, "FOLDER", own / "probes")
    monkeypatch.setenv(abilities.VARIABLE, abilities.COMPILED_AHEAD)
    yield Path("/") / own / "probes"
    shutil.rmtree(Path("/") / own, ignore_errors=True)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry per run of the compiler."""
    runs: list[int] = []
    compile_text = compiled.compile_text

    def counted(*arguments: object, **options: object) -> Compiled:
        runs.append(1)
        return compile_text(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(compiled, "compile_text", counted)
    return runs


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Module]]:
    source = tmp_path / "small.bpf.c"
    source.write_text(SOURCE)
    opened: list[Module] = []

    def load() -> Module:
        opened.append(loader.load([source]))
        return opened[-1]

    yield load
    for module in opened:
        module.close()


def _works(module: Module) -> bool:
    """Whether its program counts what it is attached to: the clock of the CPUs."""
    module.held.update(perf_events.attach_clock(module.program("count_one", programs.PERF_EVENT).fd, 199, Path("/")))
    end = time.monotonic() + 5
    while not (count := sum(module.maps["counts"][ctypes.c_int(1)])) and time.monotonic() < end:
        time.sleep(0.01)
    return count > 0


def test_the_second_start_of_all_probes_compiles_nothing_and_loads_the_same(
    kept: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    costs, types_read = [], []
    index = btf.Btf._index

    def counted(types: btf.Btf) -> None:
        types_read.append(len(costs))
        index(types)

    monkeypatch.setattr(btf.Btf, "_index", counted)
    btf.forget()
    for _ in range(2):
        probes = kernel_probes.load(hz=99)
        try:
            assert (probes.notes, probes.remarks) == ([], [])
            costs.append({cost.program for cost in probes.module.costs()})
        finally:
            probes.close()
    assert len(compilations) == 1
    assert len(costs[0]) > 20
    assert costs[0] == costs[1]
    assert types_read == [0]  # by the first start
    assert {file.stat().st_mode & 0o777 for file in kept.iterdir()} == {0o600}


def test_a_module_from_the_cache_counts(kept: Path, compilations: list[int], start: Callable[[], Module]) -> None:
    assert _works(start())
    assert _works(start())
    assert len(compilations) == 1


def _foreign(file: Path) -> None:
    os.chown(file, 65534, 65534)


def _linked(file: Path) -> None:
    file.rename(file.with_suffix(".real"))
    file.symlink_to(file.with_suffix(".real"))


def _changed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [_foreign, _linked, _changed, lambda file: os.truncate(file, 1000), lambda file: file.chmod(0o644)],
    ids=["foreign", "linked", "changed", "truncated", "open"],
)
def test_what_cannot_be_trusted_is_compiled_anew_with_a_word_and_replaced(
    kept: Path, compilations: list[int], start: Callable[[], Module], harm: Callable[[Path], None]
) -> None:
    start()
    (file,) = kept.iterdir()
    harm(file)
    second = start()
    assert len(second.remarks) == 1
    assert second.remarks[0].startswith("the cached probes are not used")
    assert _works(second)
    assert (start().remarks, len(compilations)) == ([], 2)


def test_a_folder_that_others_can_write_to_is_neither_read_nor_written(
    kept: Path, compilations: list[int], start: Callable[[], Module]
) -> None:
    start()
    kept.chmod(0o777)
    (file,) = kept.iterdir()
    before = file.stat().st_mtime_ns
    second = start()
    assert (len(second.remarks), len(compilations)) == (2, 2)
    assert file.stat().st_mtime_ns == before
    assert _works(second)


def test_a_table_holds_what_was_written_and_lists_all_of_it(kept: Path, start: Callable[[], Module]) -> None:
    table = start().maps["places"]
    for number in range(ENTRIES):
        key = table.Key(number, (number % 7, 3))
        table[key] = table.Leaf(number * number, b"word")
    found = {key.number: (tuple(key.pair), leaf.sum, leaf.word) for key, leaf in table.items()}
    assert found == {number: ((number % 7, 3), number * number, b"word") for number in range(ENTRIES)}
    del table[table.Key(5, (5, 3))]
    with pytest.raises(KeyError):
        table[table.Key(5, (5, 3))]
    with pytest.raises(KeyError):
        del table[table.Key(5, (5, 3))]
    assert len(table.keys()) == ENTRIES - 1


def test_a_program_that_the_kernel_refuses_is_refused_with_the_kernels_words(
    kept: Path, start: Callable[[], Module]
) -> None:
    with pytest.raises(OSError, match=r"; \S+"):
        start().program("never_ends")


LOAD = """
import sys
from pathlib import Path
from rankscope.probes.bpf import cache, loader
cache.FOLDER = Path(sys.argv[2])
loader.load([Path(sys.argv[1])])
"""


def test_an_observer_that_is_killed_takes_the_compiler_with_it(kept: Path, tmp_path: Path) -> None:
    source = tmp_path / "small.bpf.c"
    source.write_text(SOURCE)
    observer = subprocess.Popen([sys.executable, "-c", LOAD, source, cache.FOLDER], stderr=subprocess.DEVNULL)
    compiler: list[psutil.Process] = []
    end = time.monotonic() + 60
    while not compiler and observer.poll() is None and time.monotonic() < end:
        compiler = [
            child for child in psutil.Process(observer.pid).children() if "compile_with_bcc" in str(child.cmdline())
        ]
    assert compiler
    observer.send_signal(signal.SIGKILL)
    observer.wait()
    psutil.wait_procs(compiler, timeout=10)
    assert not compiler[0].is_running()
    assert not kept.exists() or list(kept.iterdir()) == []
