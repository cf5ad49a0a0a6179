"""The programs that the lab can train: what is said of them is in them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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
