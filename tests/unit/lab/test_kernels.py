"""scripts/kernels without network or emulator: packages, roots, what comes over the console, what is right, the table."""

from __future__ import annotations

import gzip
import importlib.util
import marshal
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernelkit import archive, arm_root, kernels, record
from kernelkit.architecture import AARCH64, X86_64, Architecture
from kernelkit.archive import Source
from kernelkit.cli import main
from kernelkit.guest.judge import calls_right, samples_right
from kernelkit.guest.tests import summary
from kernelkit.guest.verdicts import healthy, slow_function
from kernelkit.initial import initial
from kernelkit.kernels import Kernel
from kernelkit.lines import Check, Console, encode
from kernelkit.machine import boot
from kernelkit.record import Result
from labkit.machine.shell import REPOSITORY

PACKAGES = (
    "linux-image-5.10.0-9-amd64", "linux-image-5.10.0-32-amd64", "linux-image-5.10.0-33-cloud-amd64", "linux-image-5.10.0-34-rt-amd64",
    "linux-image-5.100.0-1-amd64", "linux-image-6.12.107+deb13-amd64", "linux-image-7.3.4+deb13-amd64", "linux-image-7.3.4+deb13-arm64",
    "linux-image-amd64", "linux-image-7.4.0+deb13-cloud-amd64",
)  # fmt: skip


@pytest.mark.parametrize(
    ("series", "found"),
    [
        ("5.10", "linux-image-5.10.0-32-amd64"),
        ("6.1", None),
        ("6.12", "linux-image-6.12.107+deb13-amd64"),
        ("", "linux-image-7.3.4+deb13-amd64"),
    ],
)
def test_the_newest_plain_kernel_of_a_series_is_chosen(series: str, found: str | None) -> None:
    assert kernels.newest(Kernel("", "", series), PACKAGES, "amd64") == found


def test_a_split_kernel_is_fetched_whole() -> None:
    depends = "dracut | initramfs-tools (>= 0.1), linux-base-7.3 (= 1), linux-binary-7.3 (= 1), linux-modules-7.3 (= 1), linux-base (>= 4)"
    assert kernels.parts(depends) == ["linux-base-7.3", "linux-binary-7.3", "linux-modules-7.3"]


def test_the_archive_and_its_keyring_are_those_of_the_host(tmp_path: Path) -> None:
    stanzas = (
        "Types: deb\nURIs: http://a.example/debian-security\nSuites: bookworm-security\n\n"
        "Types: deb\n# a comment\nURIs: http://a.example/debian\nSuites: bookworm\nSigned-By: /k.gpg\n"
    )
    assert archive.parse_stanzas(stanzas) == Source("http://a.example/debian", "/k.gpg")
    line = "deb-src http://x/debian a\ndeb [arch=amd64 signed-by=/k.gpg] http://b.example/debian bookworm main\n"
    assert archive.parse_lines(line) == Source("http://b.example/debian", "/k.gpg")
    assert archive.parse_lines("deb http://b.example/ubuntu jammy main\n") is None
    with pytest.raises(archive.LabError, match="no source of Debian") as error:
        archive.source_of_host(tmp_path)
    assert error.value.exit_code == 69


def test_checks_are_found_among_what_else_the_console_says() -> None:
    checks = [Check("programs", False, "51 of 52; rs_sample: R3 \x1b[2J min\n", 1.5), Check("boot", True, "6.1")]
    text = "\x1bc[?7lSeaBIOS\r\n" + "".join(f"noise {encode(check)}\r\n" for check in checks)
    console, found = Console(), []
    for byte in text.encode():
        found += console.feed(bytes([byte]))
    assert found == [replace(checks[0], words="51 of 52; rs_sample: R3  [2J min"), checks[1]]
    assert console.plain == ["c[?7lSeaBIOS"]


@pytest.mark.parametrize(
    "line", ["{}", "[1]", '{"name": 1, "good": true, "words": "", "seconds": 0}', "no JSON", '{"name": "a"']
)
def test_half_a_check_is_none(line: str) -> None:
    assert Console().feed(f"rankscope-check: {line}\n".encode()) == []


def test_what_a_console_can_make_us_remember_is_limited() -> None:
    console = Console()
    for _ in range(100):
        assert console.feed(b"x" * (1 << 20)) == []
    console.feed(b"\n" + b"line\n" * 1000)
    assert len(console._rest) <= 16 << 10
    assert len(console.plain) <= 20
    long = Check("a", True, "w" * 5000)
    assert [len(check.words) for check in console.feed(f"{encode(long)}\n".encode())] == [600]


def test_the_first_file_system_is_a_cpio_archive_with_modules_in_order(tmp_path: Path) -> None:
    content = initial(b"busy", {"00-a.ko": b"abc", "01-b.ko": b"12345"}, ["/a folder/python", "it's", "$x"])
    files, left = {}, gzip.decompress(content)
    while left.startswith(b"070701"):
        fields = [int(left[6 + 8 * n : 14 + 8 * n], 16) for n in range(13)]
        name_end = -(-(110 + fields[11]) // 4) * 4
        files[left[110 : 109 + fields[11]].decode()] = left[name_end : name_end + fields[6]]
        left = left[name_end + -(-fields[6] // 4) * 4 :]
    assert list(files)[-1] == "TRAILER!!!"
    assert (files["bin/busybox"], files["mods/00-a.ko"], files["mods/01-b.ko"]) == (b"busy", b"abc", b"12345")
    # The script passes the words on as they are, whatever is in them.
    last = files["init"].decode().splitlines()[-1].replace("exec switch_root /root /bin/sh -c", "echo")
    said = subprocess.run(["sh", "-c", last], capture_output=True, text=True, check=True).stdout
    assert "'/a folder/python'" in said
    assert "'$x'" in said


@pytest.mark.parametrize(
    ("named", "samples", "wrong"),
    [
        ([("crunch", "/x/known.py", 11)] * 95, 100, ""),
        ([("crunch", "/x/known.py", 11)] * 30, 30, "30 samples in 4 s"),
        ([("crunch", "/x/known.py", 12)] * 100, 100, "crunch (known.py:12) 100"),
        ([("crunch", "/x/known.py", 11)] * 60 + [("main", "/x/known.py", 16)] * 40, 100, "main (known.py:16) 40"),
        ([], 100, "no stack was named"),
        ([], 0, "0 samples"),
    ],
)
def test_a_sampled_stack_is_right_only_with_its_function_and_line(
    named: list[tuple[str, str, int]], samples: int, wrong: str
) -> None:
    said, _ = samples_right(named, samples, "known.py", 11)
    assert wrong in said
    assert bool(said) == bool(wrong)


@pytest.mark.parametrize(
    ("seen", "right"),
    [
        ([30_200_000, 31_000_000], True),
        ([30_200_000], False),
        ([], False),
        ([28_000_000, 31_000_000], False),
        ([30_200_000, 33_000_000], False),
    ],
)
def test_a_timed_call_lies_between_what_was_asked_and_the_programs_own_clock(seen: list[int], right: bool) -> None:
    said, _ = calls_right(seen, [30_500_000, 31_500_000], [30_000_000, 30_500_000])
    assert (said == "") is right


def verdict(ranks: list[int], line: int, status: str = "fault", name: str = "augment") -> dict[str, object]:
    function = {"name": name, "file": "/a/train.py", "line": line}
    return {
        "status": status,
        "suspects": [{"ranks": ranks, "function": function, "component": "python", "cause": "slow-function"}],
    }


def test_verdicts_are_right_or_not() -> None:
    assert slow_function(verdict([1], 17)) == (True, "fault: python/slow-function, rank 1 in augment (train.py:17)")
    for wrong in (
        verdict([0], 17),
        verdict([1], 0),
        verdict([1], 17, "hang"),
        verdict([1], 17, name="main"),
        {"status": "healthy"},
    ):
        assert not slow_function(wrong)[0]
    assert healthy({"status": "healthy", "suspects": []}) == (True, "healthy")
    assert healthy({"status": "unknown", "suspects": [], "notes": ["no eyes"]}) == (False, "unknown: no eyes")
    assert not healthy(verdict([1], 17))[0]


def test_kernel_tests_are_counted_with_the_names_of_those_that_failed() -> None:
    failed = "FAILED tests/kernel/test_probes.py::test_a[x] - assert 1\nERROR tests/kernel/test_b.py::test_c\n"
    assert summary("....\n12 passed, 3 rerun in 3.2s\n") == (True, "12 of 12")
    assert summary(f"{failed}1 failed, 12 passed, 1 error in 3.2s\n") == (False, "12 of 14; test_a; test_c")
    assert summary("no tests ran in 0.1s\n") == (False, "0 of 0")


def test_a_result_is_good_only_with_all_its_checks_and_a_proper_end(tmp_path: Path) -> None:
    result = Result("6.1", "x86_64", "6.1.0-50-amd64", "2026-11-28", 90, (Check("programs", True, "52 of 52"),))
    assert result.good
    assert not replace(result, checks=()).good
    assert not replace(result, ended="it was not done after 240 s").good
    assert not replace(result, checks=(*result.checks, Check("timed call", False, ""))).good
    path = tmp_path / "results.json"
    other = replace(result, kernel="5.10")
    for one in (result, other, replace(result, day="2026-11-29")):
        record.keep(one, path)
    kept = record.read(path)
    assert list(kept) == ["5.10 x86_64", "6.1 x86_64"]
    assert kept["6.1 x86_64"].day == "2026-11-29"
    assert "| 52 of 52 |" in record.table(kept)
    # Stages that were not run again keep their checks, of the same kernel alone.
    record.keep(replace(result, checks=(Check("timed call", True, "10 calls"),)), path)
    assert [check.name for check in record.read(path)["6.1 x86_64"].checks] == ["programs", "timed call"]
    record.keep(replace(result, release="6.1.0-51-amd64", checks=(Check("timed call", True, "10 calls"),)), path)
    assert [check.name for check in record.read(path)["6.1 x86_64"].checks] == ["timed call"]


def test_the_evidence_has_the_recorded_table() -> None:
    text = record.EVIDENCE.read_text("utf-8")
    assert record.in_evidence(text, record.read()) == text


def test_a_table_takes_the_place_of_the_earlier_one_in_the_evidence() -> None:
    first = Result("6.1", "x86_64", "6.1.0-50-amd64", "2026-11-28", 90, (Check("programs", True, "52 of 52"),))
    once = record.in_evidence("# A\n\nwords\n\n## What it costs\n\nlittle\n", {first.key: first})
    assert once.startswith("# A\n\nwords\n\n## Which kernels\n")
    assert once.endswith("| 2026-11-28 |\n\n## What it costs\n\nlittle\n")
    assert record.in_evidence(once, {first.key: first}) == once
    later = replace(first, day="2026-11-29")
    assert record.in_evidence(once, {first.key: later}) == once.replace("11-28", "11-29")


def a_machine(folder: Path, script: str) -> tuple[archive.Fetched, Architecture]:
    """A kernel without content, and a program in place of the emulator."""
    emulator = folder / "emulator"
    emulator.write_text(f"#!/bin/sh\n{script}\n")
    emulator.chmod(0o755)
    (folder / "modules").mkdir()
    kernel = archive.Fetched("linux-image-6.1", "1", "6.1", str(folder))
    return kernel, replace(X86_64, emulator=str(emulator), busybox=emulator)


def test_a_machine_that_never_ends_is_ended(tmp_path: Path) -> None:
    heard: list[Check] = []
    script = f"echo '{encode(Check('boot', True, ''))}'; echo $$ > {tmp_path}/pid; exec sleep 600"
    booted = boot(*a_machine(tmp_path, script), ["probes"], 1.5, heard.append)
    assert [check.name for check in booted.checks] == [check.name for check in heard] == ["boot"]
    assert booted.ended == "it was not done after 2 s"
    assert booted.seconds < 10
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_machine_that_ends_badly_says_its_last_words(tmp_path: Path) -> None:
    booted = boot(*a_machine(tmp_path, "echo 'no such option'; exit 3"), ["probes"], 30, lambda check: None)
    assert (booted.checks, booted.ended) == ((), "the emulator ended with 3\n    | no such option")


def test_the_emulator_ends_with_the_command_however_that_ends(tmp_path: Path) -> None:
    a_machine(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    program = (
        "from dataclasses import replace; from pathlib import Path; from kernelkit import archive, machine, architecture\n"
        f"here = Path({str(tmp_path)!r})\n"
        "kind = replace(architecture.X86_64, emulator=str(here / 'emulator'), busybox=here / 'emulator')\n"
        "machine.boot(archive.Fetched('', '', '', str(here)), kind, [], 60, print)"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "scripts"), "TMPDIR": str(tmp_path)},
    )
    until = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert time.monotonic() < until
        time.sleep(0.05)
    command.kill()
    command.wait()
    emulator = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    while emulator.exists() and ") Z " not in emulator.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_recorded_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--table"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == record.table(record.read())


@pytest.mark.parametrize("words", [["--only", "4.*"], ["--stages", "probes,walk"], ["--arch", "vax"], ["--bogus"]])
def test_wrong_usage_ends_with_64(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 64


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


def test_a_cpu_that_does_not_answer_for_long_ends_the_boot_and_its_first_report_is_kept() -> None:
    console = Console()
    report = (
        "[  {0}.0] watchdog: BUG: soft lockup - CPU#1 stuck for {1}s! [python:118]\n[  {0}.1] RIP: smp_call_function\n"
    )
    console.feed(b"[    1.0] hello\n" + report.format(90, 26).encode())
    assert not console.stuck and console.trace[-1].endswith("RIP: smp_call_function")
    console.feed(report.format(170, 101).encode() + b"[  171.0] more\n" * 100)
    assert console.stuck and console.trace[0].startswith("[  90.0] watchdog") and len(console.trace) == 60
