"""The house stays as it was drawn: imports point down, no cycles, no crowded folder, every room says what it is for."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
import setuptools

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("probes", "unwinder", "observer", "diagnose")
MOST_FILES = 15
TABLES_OF_CASES = ("diagnose/sweep/checks", "diagnose/infer/causes/")

# From the bottom up: a room imports only what stands before it in its own list, and packages before its own.
# A name that is a file is a room of its own at the root of its package. Of `infer` and `face` each room has its own place.
PARTED = ("diagnose.infer", "diagnose.face")
FLOORS: dict[str, tuple[str, ...]] = {
    "probes": (
        "base", "confine", "host", "servers", "mapped", "elf", "bpf", "sched", "files", "sampling", "network", "pci", "ports", "gpu",
        "nccl", "calls",
    ),
    "unwinder": ("errors", "interpreter", "names", "walk", "gpu"),
    "observer": (
        "sources", "window", "census", "serving", "steps", "thread", "gpu", "tables", "live", "finish", "apart", "sight", "recorder",
        "watch", "programs_ahead", "doctor",
    ),
    "diagnose": (
        "severity", "budgets", "collector", "no_pandas", "extras", "limits", "text", "xids",
        "stats",
        "infer.lacking", "infer.verdict", "infer.flight", "infer.fleet", "infer.model", "infer.budget", "infer.past", "infer.causes",
        "infer.solve",
        "face.report", "face.export", "face.schemas", "face.demo", "sweep", "service", "nvsentinel", "face.documents",
        "face.mcp", "face.top", "face.cli",
    ),
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Dotted names below `rankscope` and their files, of the four packages."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *(f"{package}/*.py" for package in PACKAGES)],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    found = {}
    for name in listed:
        path = REPOSITORY / name
        if path.exists():
            parts = Path(name).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, those in functions and under TYPE_CHECKING too."""
    result = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            inner = name.removeprefix("rankscope.")
            if inner != name and inner in MODULES and MODULES[inner].name != "__init__.py":
                result.add(inner)
    return result


@cache
def all_imports() -> dict[str, set[str]]:
    return {name: imports(path) for name, path in MODULES.items()}


def room(module: str) -> tuple[str, str]:
    package, *rest = module.split(".")
    return package, ".".join(rest[: 2 if module.startswith(tuple(f"{one}." for one in PARTED)) else 1])


def test_imports_point_down() -> None:
    upward = []
    for module, imported in all_imports().items():
        package, own = room(module)
        for other in imported:
            below, its = room(other)
            if below != package:
                fine = PACKAGES.index(below) < PACKAGES.index(package)
            elif not own or own == its:
                fine = True
            else:
                fine = FLOORS[package].index(its) < FLOORS[package].index(own)
            if not fine:
                upward.append(f"{module} -> {other}")
    assert upward == []


def test_no_file_imports_itself_by_a_detour() -> None:
    left = {module: set(imported) for module, imported in all_imports().items()}
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_its_place(package: str) -> None:
    rooms = {room(module)[1] for module in MODULES if module.startswith(f"{package}.") and module not in PARTED}
    assert rooms == set(FLOORS[package])


def test_no_folder_is_crowded() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *PACKAGES, "scripts"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()  # fmt: skip
    count: dict[str, int] = defaultdict(int)
    for name in listed:
        path = Path(name)
        if path.suffix in (".py", ".c", ".h") and path.name != "__init__.py" and (REPOSITORY / path).exists():
            count[str(path.parent)] += 1
    free = (*TABLES_OF_CASES, "scripts/labkit/faults", "scripts/labkit/gpu/sim", "scripts/labkit/jobs/programs")
    assert {name: number for name, number in count.items() if number > MOST_FILES and not name.startswith(free)} == {}


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES.values()}))
def test_every_room_says_what_it_is_for(folder: Path) -> None:
    readme = folder / "README.md"
    assert readme.is_file(), "a room has a README: what comes in, what goes out, where to add one"
    assert len(readme.read_text().splitlines()) >= 5


def test_the_distribution_holds_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setuptools, "setup", setuptools.setup)  # the backend's own is for a build alone
    monkeypatch.chdir(REPOSITORY)
    folders = {str(path.parent.relative_to(REPOSITORY)) for path in MODULES.values()}
    built = importlib.import_module("buildkit.backend")
    assert set(built.packages()) == {f"rankscope.{folder.replace('/', '.')}" for folder in folders}
    assert built.FOLDERS == PACKAGES


def test_programs_that_tests_keep_as_text_import_what_is_there() -> None:
    """No type checker looks into them, so a file that moves would be missed."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "tests/*.py", "scripts/*.py"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    folders = {str(path.parent.relative_to(REPOSITORY)).replace("/", ".") for path in MODULES.values()}
    wrong = []
    for name in listed:
        if not (REPOSITORY / name).exists():
            continue
        text = (REPOSITORY / name).read_text()
        for module, names in re.findall(r"\bfrom rankscope\.([\w.]+) import (\w+(?:, \w+)*)", text):
            missing = [one for one in names.split(", ") if module in folders and f"{module}.{one}" not in MODULES]
            wrong += [f"{name}: {module}.{one}" for one in missing]
            wrong += [f"{name}: {module}"] if module not in folders and module not in MODULES else []
        for module in re.findall(r"\bimport rankscope\.([\w.]+)", text):
            wrong += [f"{name}: {module}"] if module not in folders and module not in MODULES else []
    assert wrong == []


@pytest.mark.parametrize("readme", ["unwinder/README.md", "probes/README.md", ".github/ARCHITECTURE.md"])
def test_a_walk_from_the_kernel_to_the_verdict_names_what_is_there(readme: str) -> None:
    """In ten lines, with functions, classes and files that exist. Words with a dot are a class and its method, or a counter."""
    walk = re.split(r"^## One .*\n", (REPOSITORY / readme).read_text(), flags=re.MULTILINE)[1]
    assert [line[:3] for line in walk.splitlines() if line[:1].isdigit()] == [f"{n}. "[:3] for n in range(1, 11)]
    sources = "".join(
        path.read_text() for package in PACKAGES for path in (REPOSITORY / package).rglob("*.*") if path.suffix in (".py", ".c", ".h")
    )  # fmt: skip
    missing = []
    for said in re.findall(r"`([^`]+)`", walk):
        name = said.partition("(")[0]
        if "/" in name:
            missing += [] if (REPOSITORY / "diagnose" / name).exists() else [said]
        elif f'"{name}"' not in sources:  # no cause, no counter: what the code defines
            last = re.escape(name.rpartition(".")[2])
            defined = rf"(?:def|class|struct|int|u64|void) {last}\b|^    {last}: |, {last}, "
            missing += [] if re.search(defined, sources, re.MULTILINE) else [said]
    for file in re.findall(r"[\w/]+\.py(?!:)", walk):
        missing += [] if any(str(path).endswith(f"/{file}") for path in MODULES.values()) else [file]
    assert missing == []


def test_each_file_of_tests_has_a_name_of_its_own() -> None:
    """They lie in no packages: pytest takes two of one name for the same module when it collects them in one run."""
    names = [path.name for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert sorted(name for name in names if names.count(name) > 1) == []


def test_no_file_holds_two_versions_of_itself() -> None:
    marks = r"^(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|) "
    found = subprocess.run(["git", "grep", "-InE", marks], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")
