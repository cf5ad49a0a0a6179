"""What a counter's growth showed is a warning for hours, so that an alert that waits can fire."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_trees import BOOT, CHECKS, NOW_S, UPTIME_S, host, look_all, put

from rankscope.diagnose.face.cli.host import sweep as command
from rankscope.diagnose.sweep import lasting
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding

SOURCES = Path(lasting.__file__).parent / "checks"
# They judge the share of the time since the last sweep: a state of the host, which ends.
SHARES = {"cpu.steal", "mem.pressure", "disk.slow"}
GREW = Finding("mem.ecc", "critical", "mc0/dimm1", "/sys/ue_count", 2.0, "errors", "none", "memory lost data", "Replace it.",
               lasts=True)  # fmt: skip


def day(identifier: str) -> float:
    return 24.0 if identifier in CHECKS else 0.0


def swept(tmp_path: Path, *findings: Finding, after_s: float = 0.0, boot: str = BOOT) -> Sweep:
    done = look_all(host(tmp_path), "mem.oom")
    return replace(done, findings=findings, time_s=NOW_S + after_s, uptime_s=UPTIME_S + after_s, boot=boot)


def stored(entries: tuple[lasting.Lasting, ...]) -> dict[tuple[str, str], str]:
    return {(identifier, key): word for identifier, key, word in lasting.as_words(entries)}


@pytest.mark.parametrize("path", sorted(SOURCES.glob("*.py")), ids=lambda path: path.stem)
def test_each_check_that_judges_growth_says_for_how_many_hours(path: Path) -> None:
    text, identifier = path.read_text(), path.stem.replace("_", ".", 1).replace("_", "-")
    if "context.grown(" in text and identifier not in SHARES:
        assert CHECKS[identifier].settings[lasting.HOURS] == 24.0 and "lasts=True" in text and "`hours`" in text
    assert ("lasts=True" not in text) or "context.grown(" in text


def test_a_critical_finding_is_repeated_as_a_warning_until_its_hours_or_its_boot_end(tmp_path: Path) -> None:
    words = stored(lasting.lasting({}, swept(tmp_path, GREW), day))
    fine = Finding("mem.ecc", "ok", "mc0/dimm1", "/sys/ce_count", 0.0, "errors/h", "at most 10", "", "")
    for after_s, boot, state in (
        (300.0, BOOT, "warning"), (86399.0, BOOT, "warning"), (86401.0, BOOT, "ok"), (300.0, "another", "ok"), (-60.0, BOOT, "ok"),
    ):  # fmt: skip
        later = swept(tmp_path, fine, after_s=after_s, boot=boot)
        entries = lasting.lasting(words, later, day)
        (found,) = lasting.repeated(later.findings, entries, later, day)
        assert found.state == state
        if state == "warning":  # what was read now, why and since when of then
            assert (found.value, found.unit, found.since_s) == (0.0, "errors/h", NOW_S)
            assert found.expected == "none for 24 h" and found.action == "Replace it."
    assert lasting.repeated(later.findings, lasting.lasting(words, later, lambda _: 0.0), later, day) == (fine,)


def test_what_grows_again_is_told_as_it_is_now_and_lasts_from_now(tmp_path: Path) -> None:
    first = lasting.lasting({}, swept(tmp_path, GREW), day)
    again = swept(tmp_path, replace(GREW, value=5.0), after_s=80000.0)
    second = lasting.lasting(stored(first), again, day)
    assert lasting.repeated(again.findings, second, again, day) == again.findings
    gone = swept(tmp_path, after_s=90000.0)  # the DIMM is not listed any more
    (found,) = lasting.repeated((), lasting.lasting(stored(second), gone, day), gone, day)
    assert (found.state, found.value, found.since_s) == ("warning", None, NOW_S)
    assert (found.why, found.read) == ("5 errors 2.8 h ago: memory lost data", GREW.read)


def test_a_flood_and_what_is_no_entry_are_bounded_and_left_out(tmp_path: Path) -> None:
    many = [replace(GREW, id="net.errors", instance=f"eth{at}", why="x" * 9999) for at in range(1000)]
    entries = lasting.lasting({}, swept(tmp_path, *many, GREW), day)
    assert len(entries) == lasting.MOST_LASTING and any(one.id == "mem.ecc" for one in entries)
    assert max(len(word) for word in stored(entries).values()) < 2000
    broken = {(lasting.ID, str(at)): text for at, text in enumerate(["", "[]", "[1]", "{", json.dumps([[]] * 9), "7"])}
    assert lasting.lasting(broken, swept(tmp_path), day) == ()


def test_a_kill_for_memory_is_a_warning_of_every_sweep_of_the_day_in_text_and_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, state, file = host(tmp_path / "root"), tmp_path / "state", tmp_path / "sweep.prom"
    state.mkdir(mode=0o700)
    (config := tmp_path / "off.toml").write_text('[check."mem.oom"]\nhours = 0\n')
    options = command.Options(only=("mem.oom",), root=root, state=state, textfile=file, as_json=True)

    def run(minute: int, **more: Any) -> tuple[int, dict[str, Any]]:
        put(root, {"proc/uptime": f"{UPTIME_S + 60 * minute} 1.0\n"})
        code = command.run(replace(options, **more))
        return code, json.loads(capsys.readouterr().out)["findings"][0]

    assert run(0)[0] == 0
    put(root, {"proc/vmstat": "oom_kill 2\n"})
    assert run(3)[1]["value"] == 2.0
    for minute in (6, 20, 1200):
        code, found = run(minute)
        assert (code, found["state"], found["value"]) == (1, "warning", 0.0)
        assert found["why"].startswith("2 kills ") and "ago: processes were killed" in found["why"]
        lines = file.read_text().splitlines()
        assert 'rankscope_sweep_state{check="mem.oom",device=""} 1' in lines
        assert 'rankscope_sweep_value{check="mem.oom",device="",unit="kills"} 0' in lines
    assert run(1201, config=config)[1]["state"] == "ok"
    assert run(1202)[1]["state"] == "ok", "what the operator switched off is forgotten"
    assert not any("instance=" in line for line in lines)
