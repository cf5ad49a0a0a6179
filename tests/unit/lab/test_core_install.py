"""An installation without extras: everything the product imports is declared, nothing heavy comes along, and a trimmed one works."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
# Import names that differ from the package's, and bcc, which comes from the distribution.
IMPORTED_AS = {
    "nvidia-ml-py": "pynvml",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "",
    "grpcio": "grpc",
    "protobuf": "google",
}
ELSEWHERE = {"rankscope", "bcc", "dask"}  # dask comes with distributed
HEAVY = ("pandas", "scipy", "statsmodels", "torch", "ray", "distributed")


def declared() -> set[str]:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras if extra != "dev" for line in extras[extra])]
    names = [re.split(r"[<>=; ]", line)[0] for line in lines]
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


def imported(path: Path) -> set[str]:
    """Top-level names of a file's absolute imports, also those inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("folder", ["probes", "unwinder", "observer", "diagnose"])
def test_the_product_imports_only_what_it_declares(folder: str) -> None:
    allowed = {*sys.stdlib_module_names, *declared(), *ELSEWHERE}
    wrong = {str(path): imported(path) - allowed for path in (REPOSITORY / folder).rglob("*.py")}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_nothing_heavy_comes_with_a_core_install() -> None:
    lock = (REPOSITORY / "scripts/runtime.lock").read_text()
    assert [name for name in HEAVY if re.search(rf"^{name}==", lock, re.MULTILINE)] == []


def test_a_trimmed_installation_writes_and_reads_windows(tmp_path: Path) -> None:
    # GIVEN the installed packages that are trimmed, hard-linked where that can be
    installed = Path(sysconfig.get_path("purelib"))
    packages = [*installed.glob("pyarrow"), *installed.glob("numpy"), *installed.glob("numpy.libs")]
    if subprocess.run(["cp", "-al", *packages, tmp_path], capture_output=True, check=False).returncode:
        for package in packages:
            shutil.copytree(package, tmp_path / package.name, dirs_exist_ok=True)
    # WHEN they are trimmed
    trimmed = subprocess.run([REPOSITORY / "scripts/trim", tmp_path], capture_output=True, text=True, check=True)
    assert re.match(r"trim: \d+ MB in ", trimmed.stdout)
    assert not list(tmp_path.glob("pyarrow/*flight.so*")) and not (tmp_path / "pyarrow/tests").exists()
    # THEN whatever of Arrow the product imports still loads, and Parquet is written and read
    modules = sorted(
        {
            f"pyarrow.{name}"
            for path in REPOSITORY.glob("[!.]*/**/*.py")
            if path.relative_to(REPOSITORY).parts[0] in ("probes", "unwinder", "observer", "diagnose")
            for name in re.findall(r"^\s*(?:from|import) pyarrow\.(\w+)", path.read_text(), re.MULTILINE)
        }
    )
    code = f"""
import importlib, io, sys
sys.path.insert(0, {str(tmp_path)!r})
import numpy, numpy.testing, pyarrow, pyarrow.fs, pyarrow.parquet
assert all(module.__file__.startswith({str(tmp_path)!r}) for module in (numpy, pyarrow))
for name in {modules!r}: importlib.import_module(name)
pyarrow.fs.FileSystem.from_uri("s3://bucket/key?region=eu-west-1")
memory = io.BytesIO()
pyarrow.parquet.write_table(pyarrow.table({{"one": [1, 2]}}), memory)
print(pyarrow.parquet.read_table(memory).to_pydict())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "{'one': [1, 2]}\n", done.stderr


def test_trimming_asks_for_a_folder(tmp_path: Path) -> None:
    for arguments in ([], [tmp_path / "none"], [tmp_path, tmp_path]):
        done = subprocess.run([REPOSITORY / "scripts/trim", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 64 and done.stderr.startswith("usage: ")
