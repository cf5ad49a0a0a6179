"""The root of another machine's guest, without network or emulator: what is asked of pip, and what of the clone is in it."""

from __future__ import annotations

import importlib.util
import marshal
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelkit import arm_root
from kernelkit.architecture import AARCH64, X86_64
from labkit.machine.shell import REPOSITORY

LOCK = """here==1 ; python_version < '3.14' and platform_machine == 'x86_64' and sys_platform == 'linux' \\
    --hash=sha256:00
there==2 ; platform_machine == 'aarch64' \\
    --hash=sha256:01
other==3 ; platform_machine == 's390x'
every==4
"""


def test_what_a_lock_wants_of_one_machine_is_wanted_of_the_other() -> None:
    turned = arm_root.of_aarch64(LOCK)
    assert re.findall(r"^(\w+)==.*platform_machine == '(\w+)'", turned, re.MULTILINE) == [
        ("here", "aarch64"),
        ("there", "x86_64"),
        ("other", "s390x"),
    ]
    assert arm_root.of_aarch64(turned) == LOCK


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root that is made without unpacking anything."""
    monkeypatch.setattr(arm_root, "CACHE", tmp_path)
    monkeypatch.setattr(arm_root, "_unpack", lambda root: (root / "usr/bin").mkdir(parents=True))
    monkeypatch.setattr(arm_root, "_SOURCES", ("scripts/kernelkit",))
    monkeypatch.setattr(
        arm_root,
        "_install",
        lambda venv: [(venv / name).mkdir(parents=True) for name in ("bin", "lib/python3.11/site-packages")],
    )
    root = tmp_path / "aarch64/root"
    arm_root.ready(replace(AARCH64, root=root), lambda _: None)
    return root


def test_the_clone_is_in_it_as_it_is_now_and_runs_from_there(made: Path) -> None:
    clone = made / "opt/rankscope"
    assert (clone / "probes/bpf/kernel.bpf.h").read_bytes() == (REPOSITORY / "probes/bpf/kernel.bpf.h").read_bytes()
    assert not (clone / ".git").exists()
    (clone / "probes/gone.py").touch()
    script = clone / ".venv/bin/rankscope"
    assert script.read_text().startswith("#!/opt/rankscope/.venv/bin/python\n") and os.access(script, os.X_OK)
    own = [path.read_text("utf-8") for path in (clone / ".venv/lib/python3.11/site-packages").glob("__editable__*")]
    assert own and not any(f"{REPOSITORY}/" in text for text in own)
    unpacked: list[Path] = []
    arm_root.ready(replace(AARCH64, root=made), lambda words: unpacked.append(Path(words)))
    assert not unpacked and not (clone / "probes/gone.py").exists()


def test_only_the_host_s_own_root_is_used_as_it_is() -> None:
    assert X86_64.is_of_host and not AARCH64.is_of_host
    assert AARCH64.python_on_host.is_relative_to(AARCH64.root) and AARCH64.busybox.is_relative_to(AARCH64.root)


def test_what_runs_there_is_compiled_already_under_its_name_there(made: Path) -> None:
    source = "opt/rankscope/scripts/kernelkit/kernels.py"
    if sys.version_info[:2] != tuple(map(int, arm_root.PYTHON.split("."))):
        pytest.skip(f"only Python {arm_root.PYTHON} compiles for the guest")
    content = Path(importlib.util.cache_from_source(str(made / source))).read_bytes()
    assert marshal.loads(content[16:]).co_filename == f"/{source}"
    assert int.from_bytes(content[8:12], "little") == int((made / source).stat().st_mtime)
