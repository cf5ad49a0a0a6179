"""The kernel's maps have room for what the census found: none of many ranks and workers is left out because a map is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_rank import running

from rankscope.observer.live import kernel_probes
from rankscope.observer.live.handed import LoadedProbes
from rankscope.observer.recorder import RecordOptions, record


def _entries(map_fd: int) -> int:
    """As the kernel has it."""
    lines = Path(f"/proc/self/fdinfo/{map_fd}").read_text().splitlines()
    (found,) = [int(line.split()[1]) for line in lines if line.startswith("max_entries:")]
    return found


def test_the_kernel_has_maps_as_large_as_was_asked_for() -> None:
    # GIVEN 32 ranks with 32 workers each, and 200 threads in each of 200 processes
    loaded = kernel_probes.load(hz=99, ranks=32, processes=32 * 33, threads=200 * 200)
    try:
        made = {name: _entries(table.map_fd) for name, table in loaded.maps.items()}
    finally:
        loaded.close()
    for name in ("rs_targets", "rs_interpreters", "rs_gils", "rs_calls_open"):
        assert made[name] >= 2 * 32 * 33, name
    for name in ("rs_pythreads", "rs_call_sums", "rs_file_sums"):
        assert made[name] >= 16 * 32 * 33, name
    for name in ("rs_threads", "rs_file_entries"):
        assert made[name] >= 2 * 200 * 200, name


def test_what_the_census_found_is_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    load = kernel_probes.load_module

    def loads(**numbers: Any) -> LoadedProbes:
        asked.append(numbers)
        return load(**numbers)

    # The command loads: what it hears comes from the process that looks, which has no rights.
    monkeypatch.setattr(kernel_probes, "load_module", loads)
    with running(tmp_path) as pid:
        record(RecordOptions(window_s=0.5, align_s=0.0, pids=(pid,)))
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    (one,) = asked
    assert (one["ranks"], one["processes"], one["threads"]) == (1, 1, threads)
