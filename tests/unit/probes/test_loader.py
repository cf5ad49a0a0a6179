"""The loader joins the probes' C into one text, and says what is wrong in one line."""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.probes import abilities
from rankscope.probes.bpf import compiled, headers, loader, programs, tables
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.row import HOST_ROLES
from rankscope.probes.calls.table import CALL_TABLE, CallRow
from rankscope.probes.files import probe as files


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


def test_every_row_of_the_call_table_gets_its_programs() -> None:
    text = calls.programs()
    assert text.count("int rs_enter_") == len(CALL_TABLE)
    for index, row in enumerate(CALL_TABLE):
        # Rows of one of these roles end in one program; launches are counted when they begin.
        assert (f"int rs_leave_{index}(" in text) == (row.role in HOST_ROLES)
    assert "rs_launch" in calls.programs((CallRow("libcuda.so", "cuLaunchKernel", "launch", "launch", whole=True),))
    with_argument = calls.programs((CallRow("libnccl.so", "ncclAllReduce", "allreduce", "collective", 3),))
    assert "PT_REGS_PARM3(ctx)" in with_argument
    on_the_stack = calls.programs((CallRow("libnccl.so", "ncclReduce", "reduce", "enqueue", 3, object=7),))
    assert "rs_stack_argument(ctx, 7)" in on_the_stack


def test_every_file_operation_has_its_two_tracepoints() -> None:
    points = files.tracepoints()
    assert len(points) == 2 * len(files.OPERATIONS)
    text = files.programs()
    assert all(
        f"int {point.function}(struct tracepoint__{point.event.replace(':', '__')} *" in text for point in points
    )
    assert len({point.function for point in points}) == len(points)


def _tree(root: Path, name: str, *paths: str) -> Path:
    for path in paths:
        file = root / "usr/src" / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"/* {name}/{path} */\n")
    return root / "usr/src" / name


@pytest.mark.parametrize(
    ("generated", "common"),
    [
        ("linux-headers-6.1.0-54-amd64", "linux-headers-6.1.0-54-common"),
        ("linux-headers-5.15.0-119-generic", "linux-headers-5.15.0-119"),
    ],
)
def test_headers_that_the_distribution_splits_are_joined(
    tmp_path: Path, generated: str, common: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    _tree(
        tmp_path,
        generated,
        "include/generated/autoconf.h",
        "include/config/auto.conf",
        "arch/x86/include/generated/a.h",
    )
    _tree(tmp_path, common, "include/linux/kernel.h", "include/uapi/linux/bpf.h", "arch/x86/include/asm/b.h")
    found = headers.find(tmp_path, "6.18.0-none")
    assert found.source is not None and not found.matches_kernel
    for path in (
        "include/generated/autoconf.h",
        "include/linux/kernel.h",
        "arch/x86/include/generated/a.h",
        "arch/x86/include/asm/b.h",
    ):
        assert (found.source / path).is_file()
    assert headers.find(tmp_path, "6.18.0-none") == found


def _split_headers(root: Path) -> Path:
    _tree(root, "linux-headers-6.1.0-54-amd64", "include/generated/autoconf.h")
    _tree(root, "linux-headers-6.1.0-54-common", "include/linux/kernel.h")
    return root / "var/cache/rankscope/headers"


def test_headers_of_our_own_are_roots_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    own = _split_headers(tmp_path)
    found = headers.find(tmp_path, "6.18.0-none")
    assert found.source is not None and found.source.is_relative_to(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o755)  # as earlier versions made it
    headers.find(tmp_path, "6.18.0-none")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder somebody else's")
@pytest.mark.parametrize("trouble", ["writable", "another's", "link"])
def test_headers_where_others_could_have_written_are_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    own = _split_headers(tmp_path)
    own.parent.mkdir(parents=True)
    if trouble == "link":
        (tmp_path / "elsewhere").mkdir()
        own.symlink_to(tmp_path / "elsewhere")
    else:
        own.mkdir()
        own.chmod(0o777 if trouble == "writable" else 0o755)
        os.chown(own, 65534 if trouble == "another's" else 0, -1)
    with pytest.raises(headers.NoHeaders, match="cannot be kept in"):
        headers.find(tmp_path, "6.18.0-none")
    assert not any(Path(tmp_path, "elsewhere").glob("*")) and not any(own.glob("*"))


def test_the_newest_of_several_headers_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    for release in ("6.1.0-9", "6.1.0-54", "6.1.0-50"):
        _tree(tmp_path, f"linux-headers-{release}-amd64", "include/generated/autoconf.h")
        _tree(tmp_path, f"linux-headers-{release}-common", "include/linux/kernel.h")
    assert headers.find(tmp_path, "x").release == "linux-headers-6.1.0-54-amd64"


def test_headers_of_the_running_kernel_are_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    (tmp_path / "lib/modules/6.1.0/build/include/linux").mkdir(parents=True)
    found = headers.find(tmp_path, "6.1.0")
    assert (found.source, found.matches_kernel) == (None, True)


def test_no_headers_at_all_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    with pytest.raises(headers.NoHeaders) as caught:
        headers.find(tmp_path, "6.18")
    assert "linux-headers" in caught.value.help


@pytest.mark.skipif(os.geteuid() != 0, reason="loading a program needs root")
def test_whether_the_kernel_has_a_helper_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = Path("/proc/kallsyms").read_text()
    assert programs.has_task_registers() is (" bpf_task_pt_regs\n" in symbols)
    assert tables.has_rings() is (" ringbuf_map_alloc\n" in symbols)
    monkeypatch.setenv(abilities.VARIABLE, "ring-buffer,task-registers")
    assert (programs.has_task_registers(), tables.has_rings()) == (False, False)


def test_no_kernel_is_asked_for_its_number() -> None:
    """What a kernel can do does not follow from what it is called; the cache's key and headers of one name are no comparison."""
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
    assert found == {"probes/bpf/cache.py", "probes/bpf/headers.py", "observer/doctor.py"}


def _archive(root: Path) -> None:
    content = root / "content"
    _tree(content, "k", "include/linux/kernel.h", "include/generated/autoconf.h", "arch/x86/include/asm/a.h")
    (root / "sys/kernel").mkdir(parents=True)
    with tarfile.open(root / "sys/kernel/kheaders.tar.xz", "w:xz") as archive:
        archive.add(content / "usr/src/k", ".")


def test_headers_that_the_kernel_brings_are_unpacked_into_a_folder_of_roots_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    _archive(tmp_path)
    found = headers.find(tmp_path, "6.1.0")
    assert found.source == tmp_path / "var/cache/rankscope/headers/kheaders-6.1.0" and found.matches_kernel
    assert (found.source / "include/linux/kernel.h").is_file()
    assert found.source.parent.stat().st_mode & 0o777 == 0o700
    again = found.source.stat().st_mtime_ns
    assert headers.find(tmp_path, "6.1.0").source == found.source and found.source.stat().st_mtime_ns == again


def _writable(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)


def _elsewhere(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    (folder.parent.parent / "others").mkdir()
    folder.symlink_to(folder.parent.parent / "others")


def _of_others(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.chown(folder, 65534, 65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="folders of others are made by root")
@pytest.mark.parametrize("harm", [_writable, _elsewhere, _of_others])
def test_headers_are_not_taken_from_where_others_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None]
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    _archive(tmp_path)
    harm(tmp_path / "var/cache/rankscope/headers")
    with pytest.raises(headers.NoHeaders, match="cannot be kept"):
        headers.find(tmp_path, "6.1.0")


def test_an_archive_that_is_cut_short_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    _archive(tmp_path)
    archive = tmp_path / "sys/kernel/kheaders.tar.xz"
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(headers.NoHeaders):
        headers.find(tmp_path, "6.1.0")
    assert list((tmp_path / "var/cache/rankscope/headers").iterdir()) == []
