"""The loader joins the probes' C into one text, and says what is wrong in one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rankscope.probes.base import abilities
from rankscope.probes.bpf import loader, programs, tables
from rankscope.probes.bpf.compiler import compiled


def test_an_own_include_is_put_in_once_and_a_system_include_is_left(tmp_path: Path) -> None:
    (tmp_path / "common.bpf.h").write_text("int common;\n")
    (tmp_path / "a.bpf.c").write_text('#include "common.bpf.h"\n#include <uapi/linux/ptrace.h>\nint a;\n')
    (tmp_path / "b.bpf.c").write_text('#include "common.bpf.h"\nint b;\n')
    text = loader.join([tmp_path / "a.bpf.c", tmp_path / "b.bpf.c"], ())
    assert text.count("int common;") == 1
    assert "#include <uapi/linux/ptrace.h>" in text
    assert text.index("int common;") < text.index("int a;") < text.index("int b;")


def test_an_include_is_looked_for_in_the_given_folders(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/walk.bpf.h").write_text("int walk;\n")
    (tmp_path / "a.bpf.c").write_text('#include "walk.bpf.h"\n')
    assert "int walk;" in loader.join([tmp_path / "a.bpf.c"], [tmp_path / "shared"])


def test_a_missing_include_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.bpf.c").write_text('#include "gone.bpf.h"\n')
    with pytest.raises(compiled.CompileFailed, match=r"gone\.bpf\.h"):
        loader.join([tmp_path / "a.bpf.c"], ())


@pytest.mark.skipif(os.geteuid() != 0, reason="loading a program needs root")
def test_whether_the_kernel_has_a_helper_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = Path("/proc/kallsyms").read_text()
    assert programs.has_task_registers() is (" bpf_task_pt_regs\n" in symbols)
    assert tables.has_rings() is (" ringbuf_map_alloc\n" in symbols)
    monkeypatch.setenv(abilities.VARIABLE, "ring-buffer,task-registers")
    assert (programs.has_task_registers(), tables.has_rings()) == (False, False)


def test_no_kernel_is_asked_for_its_number() -> None:
    """What a kernel can do does not follow from what it is called; the cache's key is no comparison."""
    asked = re.compile(r"os\.uname\(\)|platform\.release\(|osrelease")
    root = Path(__file__).resolve().parents[3]
    found = {
        str(path.relative_to(root))
        for package in ("probes", "unwinder", "observer")
        for path in (root / package).rglob("*.py")
        if any(
            asked.search(line) and "nodename" not in line and "machine" not in line
            for line in path.read_text().splitlines()
        )
    }
    assert found == {"probes/bpf/cache.py", "observer/doctor.py"}
