"""Programs that were compiled before they were installed: without a compiler all works, and loading costs little the first time too."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import small_rank

from rankscope.observer import doctor, programs_ahead, recorder
from rankscope.observer.live import kernel_probes
from rankscope.observer.recorder import RecordOptions
from rankscope.observer.watch import pulse
from rankscope.probes.base import abilities
from rankscope.probes.bpf import btf, cache, loader, tracepoints
from rankscope.probes.bpf.compiler import ahead, compiled, variants
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable
from rankscope.probes.bpf.programs import INSTRUCTION

pytestmark = pytest.mark.beside

LOADING_S = 0.5
PACKAGE = Path(__file__).parents[2] / "scripts/package"


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return programs_ahead.compile_all()


@pytest.fixture
def host(made: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host that has what was compiled ahead, no compiler, and was never observed. The folder of what was compiled."""
    own = Path(f"var/cache/rankscope-test-{os.getpid()}")
    monkeypatch.setattr(cache, "FOLDER", own / "probes")
    monkeypatch.setattr(ahead, "FOLDER", tmp_path / "objects")
    monkeypatch.setenv(abilities.VARIABLE, abilities.COMPILER)
    ahead.write(made, tmp_path / "objects")
    yield tmp_path / "objects"
    shutil.rmtree(Path("/") / own, ignore_errors=True)


def _cpu_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def test_the_first_load_on_a_host_compiles_nothing_and_costs_little(host: Path) -> None:
    btf.forget()
    before = _cpu_s()
    probes = kernel_probes.load(hz=99)
    cost_s = _cpu_s() - before
    try:
        assert (probes.notes, probes.remarks) == ([], [])
        assert len(probes.module.costs()) > 20
    finally:
        probes.close()
    assert cost_s <= LOADING_S, f"{cost_s:.2f} s of CPU"
    service = pulse.load()
    try:
        assert (service.module.refused, service.module.remarks) == ([], [])
    finally:
        service.close()


def test_a_window_of_a_rank_is_whole_without_a_compiler(host: Path, tmp_path: Path) -> None:
    with small_rank.running(tmp_path) as pid:
        (recorded,) = recorder.record(RecordOptions(window_s=1.0, align_s=0.0, pids=(pid,)))
    window = recorded.window
    assert not [note for note in window.manifest.notes if "not attached" in note or "not timed" in note]
    assert sum(cost.run_count for cost in window.manifest.costs if cost.program.startswith("rs_enter_")) > 10
    assert "python" in window.patterns.column("kind").to_pylist() and window.ranks.column("samples").to_pylist()[0] > 0
    (row,) = (one for one in doctor.examine() if one.name == "programs")
    assert (row.ok, row.detail) == (True, "compiled ahead")


def test_what_was_compiled_of_other_sources_is_not_used(host: Path) -> None:
    text, flags = pulse.text(), loader.flags_of(loader.machine())
    assert loader.ready(text, flags, Path("/"), [], False).programs
    with pytest.raises(BpfUnavailable, match="not compiled ahead for these sources"):
        loader.ready(text + "/* changed */", flags, Path("/"), [], False)
    for file in host.iterdir():
        file.unlink()
    (row,) = (one for one in doctor.examine() if one.name == "programs")
    assert (row.ok, row.required) == (False, True) and "not compiled ahead for these sources" in row.detail


def test_a_damaged_file_is_not_used_and_that_is_said(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, flags = pulse.text(), loader.flags_of(loader.machine())
    file = host / f"{loader.key_of(text, flags)}.json"
    file.write_bytes(file.read_bytes()[:-9])
    monkeypatch.delenv(abilities.VARIABLE)
    remarks: list[str] = []
    assert loader.ready(text, flags, Path("/"), remarks, False).programs
    assert len(remarks) == 1 and remarks[0].startswith("the probes that were compiled ahead are not used")


def test_the_same_sources_make_the_same_bytes_and_earlier_ones_go(made: dict[str, bytes], tmp_path: Path) -> None:
    text, flags = pulse.text(), loader.flags_of("aarch64")
    again = compiled.compile_text(text, flags)
    assert compiled.from_bytes(made[loader.key_of(text, flags)]).programs == again.programs
    assert compiled.from_bytes(made[loader.key_of(text, flags)]).maps == again.maps
    ahead.write({"earlier": b"{}"}, tmp_path / "objects")
    ahead.write(made, tmp_path / "objects")
    assert {path.stem for path in (tmp_path / "objects").iterdir()} == set(made)
    assert len(made) == 4 and set(made) == {key for machine in loader.MACHINES for key in programs_ahead.keys(machine)}


def test_nothing_in_a_program_is_left_that_the_host_has_to_say(made: dict[str, bytes]) -> None:
    """Whatever is put in is put in everywhere: numbers by their upper half, places of fields beyond all structures."""
    module = kernel_probes.load_module(hz=99).module
    try:
        for program in module.compiled.programs:
            code = variants.with_numbers(program.code, range(8), 3, module.numbers)
            instructions = np.frombuffer(tracepoints.placed(code), INSTRUCTION)
            assert not (instructions["value"] >> 16 == variants.NUMBERS >> 16).any(), program.name
            assert not (abs(instructions["offset"].astype(int)) >= 0x5000).any(), program.name
    finally:
        module.close()


def test_a_wheel_records_where_no_compiler_can_be_imported(tmp_path: Path) -> None:
    # GIVEN an environment with the wheel and the packages it needs, and nothing of the distribution's
    made = subprocess.run([PACKAGE, "--wheel", "--out", tmp_path], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    with zipfile.ZipFile(made.stdout.strip()) as wheel:
        wheel.extractall(packages)
    python = tmp_path / "venv/bin/python"
    assert subprocess.run([python, "-c", "import bcc"], capture_output=True, check=False).returncode

    # WHEN a small job is recorded
    with small_rank.running(tmp_path) as pid:
        command = [
            python,
            "-m",
            "rankscope.diagnose.face.cli.start",
            "record",
            "--window",
            "1",
            "--pid",
            str(pid),
            "--json",
            "--out",
            tmp_path / "out",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (window,) = json.loads(done.stdout)
    assert window["ranks"] == 1 and "compiled" not in done.stderr
    assert not [note for note in window["notes"] if "not attached" in note or "not timed" in note], window["notes"]
