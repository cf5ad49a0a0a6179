"""Which interpreters are found and which are refused, over a made /proc, a built library and built memory."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from images import Image, debug_offsets, layout

from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import Segment
from rankscope.probes.host.maps import Mapping, read_maps
from rankscope.probes.mapped.reader import FileNotRead
from rankscope.unwinder.errors import InterpreterNotReady, NotPython, TargetGone, UnsupportedInterpreter
from rankscope.unwinder.interpreter import find as find_module
from rankscope.unwinder.interpreter.elf_facts import ElfFacts, read_facts
from rankscope.unwinder.interpreter.find import Interpreter, _Candidate, _place, find_interpreter

PID = 4242
BIAS = 0x7F00_0000_0000
STAT = "4242 (py (x) thon) S " + " ".join(["1"] * 17) + " 0 777 " + " ".join(["0"] * 30)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library with a section .PyRuntime, as every libpython since 3.10 has."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("library")
    source, target = folder / "a.c", folder / "a.so"
    source.write_text('char state[1024] __attribute__((section(".PyRuntime"))) = {1};\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(source)], check=True, timeout=60)
    source.write_text("int other = 1;\n")
    plain = str(folder / "plain.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", plain, str(source)], check=True, timeout=60)
    return target


@pytest.fixture
def find(tmp_path: Path, library: Path) -> Callable[..., Interpreter]:
    """Finds the interpreter of a process that maps `library` under the path that is given."""

    def look(path: str, memory: Image, executable: str = "/usr/bin/trainer") -> Interpreter:
        base, inside = tmp_path / f"proc/{PID}", tmp_path / "container"
        base.mkdir(parents=True)
        for name, content in ((path, library), (executable, library.parent / "plain.so")):
            place = inside / name.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(content, place)
        (base / "stat").write_text(STAT)
        (base / "exe").symlink_to(executable)
        (base / "map_files").mkdir()
        lines = []
        for start, name in ((0x55D0_0000_0000, executable), (BIAS, path)):
            place, span = inside / name.lstrip("/"), f"{start:x}-{start + 0x1000:x}"
            (base / "map_files" / span).symlink_to(place)
            lines.append(f"{span} r--p 00000000 {mapped_as(place)} {name}\n")
        (base / "maps").write_text("".join(lines))
        return find_interpreter(PID, tmp_path, memory)

    return look


def mapped_as(path: Path) -> str:
    """Device and inode of a file, as maps tells them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        found = next(one for one in read_maps(os.getpid()) if one.path == str(path))
    return f"{found.device} {found.inode}"


def runtime(library: Path) -> int:
    return BIAS + read_facts(LocalFile(library), ()).runtime_section


def memory_of(library: Path, minor: int, head: bytes = b"", tstate: bool = True, shift: int = 0) -> Image:
    """One interpreter with one thread state at the library's runtime; `shift` moves the way back."""
    offsets, image, at = layout(min(minor, 15)), Image(), runtime(library)
    image.write(at, bytes(2048))
    image.write(at, head)
    interpreter = image.new(8192)
    image.u64(at + offsets.runtime_interpreters_head, interpreter)
    if tstate:
        state = image.new(400)
        image.u64(interpreter + offsets.interpreter_threads_head, state)
        image.u64(state + offsets.tstate_interp + shift, interpreter)
    return image


@pytest.mark.parametrize("minor", [8, 9, 10, 11, 12])
def test_a_libpython_is_found_by_its_name(find: Callable[..., Interpreter], library: Path, minor: int) -> None:
    found = find(f"/opt/conda/lib/libpython3.{minor}.so.1.0", memory_of(library, minor))
    assert (found.version, found.build, found.start_ticks) == ((3, minor), "shared", 777)
    assert found.runtime_address == runtime(library)


@pytest.mark.parametrize("minor", [13, 14, 15])
def test_later_versions_are_found_by_what_they_publish(
    find: Callable[..., Interpreter], library: Path, minor: int
) -> None:
    found = find(f"/opt/lib/libpython3.{minor}.so.1.0", memory_of(library, minor, debug_offsets(minor)))
    assert found.version == (3, minor)
    assert found.offsets == layout(minor)


def test_an_embedded_runtime_of_any_name_is_found(find: Callable[..., Interpreter], library: Path) -> None:
    found = find("/srv/libourpython.so", memory_of(library, 14, debug_offsets(14)))
    assert (found.build, found.path) == ("embedded", "/srv/libourpython.so")


@pytest.mark.parametrize(
    ("path", "minor", "head", "words"),
    [
        ("/usr/lib/libpython3.13t.so.1.0", 13, debug_offsets(13, free_threaded=1), "free-threaded"),
        ("/usr/lib/libpython3.11d.so.1.0", 11, b"", "debug build"),
        ("/usr/lib/libpython3.7m.so.1.0", 8, b"", r"3\.7"),
        ("/usr/lib/libpython2.7.so.1.0", 8, b"", r"2\.7"),
        ("/usr/lib/libpython3.16.so.1.0", 15, b"xdebugpy" + struct.pack("<QQ", 0x031000F0, 0), r"3\.16"),
        ("/usr/lib/libpython3.13.so.1.0", 13, b"", "no debug offsets"),
        ("/opt/pypy/bin/libpypy3.10-c.so", 10, b"", "PyPy"),
    ],
)
def test_what_is_not_known_is_refused_with_the_reason(
    find: Callable[..., Interpreter], library: Path, path: str, minor: int, head: bytes, words: str
) -> None:
    with pytest.raises(UnsupportedInterpreter, match=words):
        find(path, memory_of(library, minor, head))


def test_another_layout_is_refused(find: Callable[..., Interpreter], library: Path) -> None:
    # GIVEN a thread state that does not point back to its interpreter, as where fields have moved
    memory = memory_of(library, 11, shift=8)
    with pytest.raises(UnsupportedInterpreter, match="laid out"):
        find("/usr/lib/libpython3.11.so.1.0", memory)


def test_an_interpreter_without_threads_is_not_ready(find: Callable[..., Interpreter], library: Path) -> None:
    with pytest.raises(InterpreterNotReady):
        find("/usr/lib/libpython3.11.so.1.0", memory_of(library, 11, tstate=False))


def test_a_library_that_only_speaks_of_python_is_none(find: Callable[..., Interpreter], library: Path) -> None:
    with pytest.raises((NotPython, UnsupportedInterpreter)):
        find("/usr/lib/libtorch_python.so", Image())


def test_no_process_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(TargetGone):
        find_interpreter(PID, tmp_path)


@pytest.mark.parametrize(
    "name", ["/n/{}/libpython3.9.so", "/n/libpython_of_{}.so", "/n/_x{}.cpython-311-x86_64-linux-gnu.so"]
)
def test_of_thousands_of_files_with_the_right_name_a_few_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base = tmp_path / f"proc/{PID}"
    base.mkdir(parents=True)
    (base / "stat").write_text(STAT)
    (base / "exe").symlink_to("/usr/bin/trainer")
    places = "".join(f"{n:012x}-{n + 1:012x} r--p 00000000 08:01 {n} {name.format(n)}\n" for n in range(1, 3000))
    (base / "maps").write_text(places + "55d000000000-55d000001000 r-xp 00000000 08:01 9999 /usr/bin/trainer\n")
    opened: list[str] = []

    def refuse(pid: int, mapping: Mapping, root: Path) -> None:
        opened.append(mapping.path)
        raise FileNotRead("its file system does not answer")

    monkeypatch.setattr(find_module, "open_mapped", refuse)
    with pytest.raises((UnsupportedInterpreter, NotPython), match="first 16 files"):
        find_interpreter(PID, tmp_path, Image())
    assert "/usr/bin/trainer" in opened and len(opened) <= 1 + find_module._ALIKE_MOST


def test_a_runtime_among_extension_modules_is_looked_for_before_them() -> None:
    modules = [f"/n/_m{n}.cpython-314-x86_64-linux-gnu.so" for n in range(200)]
    paths = [*modules, "/n/libourpython.so", "/usr/bin/trainer"]
    mappings = tuple(Mapping(n, n + 1, "r-xp", 0, "08:01", n, path) for n, path in enumerate(paths, 1))
    found = [one.path for one in find_module._candidates(mappings, "/usr/bin/trainer")]
    assert found[:2] == ["/usr/bin/trainer", "/n/libourpython.so"]


@pytest.mark.parametrize("linked", [(1 << 64) - 1, 1 << 63, (1 << 63) - BIAS, 0])
def test_a_symbol_beyond_all_addresses_is_not_known(linked: int) -> None:
    lines = (Mapping(BIAS, BIAS + 0x1000, "r-xp", 0, "", 0, "/x"),)
    facts = ElfFacts(True, (Segment(0, 0, 0x1000),), 0x10, (("_Py_NoneStruct", linked), ("PyCode_Type", 0x20)))
    place = _place(_Candidate("/x", "shared", lines), facts)
    assert place is not None and (place.none, place.code_type) == (0, BIAS + 0x20)
    assert layout(14).pack(place.none)
