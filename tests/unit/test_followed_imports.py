"""Tools that only read files (pyright, mypy, editors) find every module of ours, in a clone that scripts/setup prepared."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
PATHS = [REPOSITORY / path for path in TOOLS["pyright"]["extraPaths"]]
EXCLUDED = tuple(path for path in TOOLS["pyright"]["exclude"] if "*" not in path)
OURS = ("rankscope", *(path.name for path in (REPOSITORY / "scripts").iterdir() if (path / "__init__.py").exists()))


def found(module: str, beside: Path) -> bool:
    """Whether a folder or file of this name lies on the paths, or beside the file that imports it."""
    inner = module.replace(".", "/")
    return any((path / inner).is_dir() or (path / f"{inner}.py").is_file() for path in (*PATHS, beside))


def missing(path: Path) -> list[str]:
    """Modules of ours that a file imports and that no tool would find."""
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted.add(node.module)
    return sorted(name for name in wanted if name.partition(".")[0] in OURS and not found(name, path.parent))


@pytest.mark.parametrize("folder", TOOLS["pyright"]["include"])
def test_every_module_of_ours_is_found_by_reading_files_alone(folder: str) -> None:
    files = [
        path
        for path in (REPOSITORY / folder).rglob("*.py")
        if not str(path.relative_to(REPOSITORY)).startswith(EXCLUDED)
    ]
    assert files
    assert {str(path): names for path in files if (names := missing(path))} == {}, (
        "or run scripts/setup, which makes .venv/typed"
    )


def test_what_they_find_is_this_clone() -> None:
    for folder in ("probes", "unwinder", "observer", "diagnose"):
        assert (REPOSITORY / ".venv/typed/rankscope" / folder).resolve() == REPOSITORY / folder
    assert ".venv/typed" in TOOLS["pyright"]["extraPaths"] and ".venv/typed" in TOOLS["mypy"]["mypy_path"]
