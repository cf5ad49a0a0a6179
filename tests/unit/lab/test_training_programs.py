"""The programs that the lab can train: what is said of them is in them, and what they have beside the model."""

from __future__ import annotations

import ast
import gc
import importlib.util
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from labkit.machine.log_pipe import Shipper
from labkit.programs import FOLDER, PROGRAMS


def functions_that_can_be_slow(path: Path) -> dict[str, list[str]]:
    """Name of each that calls `slow["…"]()` → what it gives there."""
    found: dict[str, list[str]] = {}
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Subscript)
                    and ast.unparse(node.value) == "slow"
                    and isinstance(node.slice, ast.Constant)
                ):
                    found.setdefault(function.name, []).append(node.slice.value)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_function_of_a_program_can_be_slow_under_its_own_name(name: str) -> None:
    program = PROGRAMS[name]
    found = functions_that_can_be_slow(program.path)
    named = {*program.functions, program.reads, program.makes_batch, program.logs}
    assert len(set(program.functions)) >= 5
    assert {function: found.get(function) for function in named} == {function: [function] for function in named}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_programs_know_nothing_of_the_observer_or_the_lab(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {module.split(".")[0] for module in imported} & {"rankscope", "labkit"} == set()


FEATURES = Path(__file__).resolve().parents[3] / "scripts/labkit/training/features.py"
RANKS = 5


@pytest.fixture(scope="module")
def features() -> ModuleType:
    """The file as the job imports it: a module beside job.py, not of a package."""
    spec = importlib.util.spec_from_file_location("job_features", FEATURES)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["job_features"] = module
    spec.loader.exec_module(module)
    return module


def test_longer_sequences_go_to_one_rank_a_step_and_to_all_in_the_end(features: ModuleType) -> None:
    ranks = [features.Lengths(rank, RANKS) for rank in range(RANKS)]
    for lengths in ranks:
        lengths.follow({"in_turn": 1.7})
    steps = [[lengths.of_step(step) for lengths in ranks] for step in range(101)]
    assert all(sorted(step) == [1.0] * (RANKS - 1) + [1.7] for step in steps)
    assert {step.index(1.7) for step in steps} == set(range(RANKS))
    ranks[3].follow({"length": 1.3})
    assert [ranks[3].of_step(step) for step in range(3)] == [1.3] * 3
    ranks[3].follow({})
    assert ranks[3].of_step(0) == 1.0


def test_nothing_is_done_without_an_order(features: ModuleType) -> None:
    idle = features.Features(features.Table(None, 0, 0), features.Checkpoints(None, 0, 0), 0)
    idle.follow({})
    began, objects = time.perf_counter(), len(gc.get_objects())
    for step in range(101):
        idle.before_forward()
        idle.after_step(step)
    assert time.perf_counter() - began < 0.5
    assert len(gc.get_objects()) - objects < 101


def test_a_checkpoint_is_written_every_so_many_steps(features: ModuleType, tmp_path: Path) -> None:
    checkpoints = features.Checkpoints(tmp_path / "state", 4, 8)
    sizes = []
    for step in range(4):
        checkpoints.after_step(step)
        sizes.append((tmp_path / "state").stat().st_size)
    assert sizes == [0, 0, 0, 8 << 10]


def test_the_reader_of_a_pipe_sets_the_pace_of_who_prints(tmp_path: Path) -> None:
    shipper = Shipper(tmp_path / "log")
    os.write(shipper.entrance, b"step 0\n")
    shipper.pace_s = 0.3 / (64 << 10)
    began = time.monotonic()
    os.write(shipper.entrance, b"." * (96 << 10))  # the pipe holds a third of it
    assert 0.2 < time.monotonic() - began < 3
    shipper.close()
    deadline = time.monotonic() + 5
    while (tmp_path / "log").read_bytes() != b"step 0\n" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "log").read_bytes() == b"step 0\n"
