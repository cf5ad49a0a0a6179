"""The sweep as a whole: deadlines, rights, the store, configuration, output, hook, the command line."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installed import PROMTOOL
from sweep_trees import CHECKS, NOW_S, host, ib, killed_as_it_renames, put

from rankscope.diagnose.face.cli.main import run as command_line
from rankscope.diagnose.severity import exit_code
from rankscope.diagnose.sweep.config import Config, parse_config
from rankscope.diagnose.sweep.context import Context, Earlier, Reading
from rankscope.diagnose.sweep.engine import MAX_FINDINGS_PER_CHECK, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.output import as_json, as_prometheus, as_text, write_atomically
from rankscope.diagnose.sweep.peers import HostSweep, odd_ones, parse_sweep
from rankscope.diagnose.sweep.registry import Check, all_checks
from rankscope.diagnose.sweep.store import Point, SweepRunning, open_store
from rankscope.diagnose.sweep.trends import trends
from rankscope.probes.host.kmsg import parse_record


def check(identifier: str, function: object) -> Check:
    return Check(identifier, "", "", {}, function)  # type: ignore[arg-type]


def test_a_check_that_hangs_or_fails_does_not_end_the_sweep(tmp_path: Path) -> None:
    # GIVEN one check that hangs, one that raises, one that lacks a right, one that is fine
    release = threading.Event()

    def hangs(_: Context) -> Iterator[Finding]:
        release.wait(20)
        return iter(())

    def fails(_: Context) -> Iterator[Finding]:
        raise RuntimeError("broken")

    def lacks(_: Context) -> Iterator[Finding]:
        raise PermissionError(13, "Permission denied", "/dev/kmsg")

    def fine(context: Context) -> Iterator[Finding]:
        yield context.ok("nothing", 1.0)

    began = time.monotonic()
    done = sweep(
        [check("a.hangs", hangs), check("b.fails", fails), check("c.lacks", lacks), check("d.fine", fine)],
        Config(timeout_s=0.3), Earlier(), host(tmp_path),
    )  # fmt: skip
    release.set()
    # THEN each is unknown, with the reason, and the others are judged
    assert time.monotonic() - began < 2
    assert [finding.state for finding in done.findings] == ["unknown", "unknown", "unknown", "ok"]
    assert (
        "0.3 s" in done.findings[0].why
        and "broken" in done.findings[1].why
        and "Run as root" in done.findings[2].action
    )


def test_what_a_late_check_had_found_counts(tmp_path: Path) -> None:
    # GIVEN a check that finds something, keeps a word and reads a counter, and then hangs
    release = threading.Event()

    def hangs(context: Context) -> Iterator[Finding]:
        context.keep("a", "up")
        context.grown("errors", 7)
        yield context.critical("x", 1.0, instance="a", expected="0", why="it is so", action="look")
        release.wait(20)

    done = sweep([check("a.hangs", hangs)], Config(timeout_s=0.3), Earlier(), host(tmp_path))
    release.set()
    found, late = done.findings
    assert (found.instance, found.state, late.state) == ("a", "critical", "unknown") and "0.3 s" in late.why
    # THEN its words are kept; its counters are not, so that the next sweep sees what has grown and was not told yet
    assert done.words == (("a.hangs", "a", "up"),) and done.counters == () and done.unfinished == ("a.hangs",)


def test_a_check_that_told_a_part_keeps_what_it_knew_of_the_rest(tmp_path: Path) -> None:
    # GIVEN two ports that were up, their counters, and a sweep that fails after the first
    whole = [True]

    def ports(context: Context) -> Iterator[Finding]:
        for name in ("a", "b"):
            was, grown = context.recall(name), context.grown(name, 3)
            context.keep(name, "up")
            yield context.ok("x", was, f"{'first' if grown.first else 'known'}", instance=name)
            if not whole[0]:
                raise RuntimeError("broken")

    def swept() -> list[tuple[str, object, str]]:
        with open_store(tmp_path / "state") as store:
            done = sweep([check("a.ports", ports)], Config(), store.earlier(), tree)
            return [
                (one.instance, one.value, one.why)
                for one in store.save(done, ("a.ports",), 14).findings
                if one.instance
            ]

    tree = host(tmp_path / "root")
    assert swept() == [("a", None, "first"), ("b", None, "first")]
    whole[0] = False
    assert swept() == [("a", "up", "known")]
    whole[0] = True
    assert swept() == [("a", "up", "known"), ("b", "up", "known")]


def test_a_counter_of_all_ones_is_remembered_like_any_other(tmp_path: Path) -> None:
    # GIVEN a dead device, which answers all ones, and another check that tells of something
    files = ib("mlx5_0", link_downed=str(2**64 - 1), symbol_error=str(2**64 - 1))
    tree, chosen = host(tmp_path / "root", files), [CHECKS["ib.flap"], CHECKS["ib.errors"], CHECKS["ib.port"]]
    for _ in range(2):
        with open_store(tmp_path / "state") as store:
            done = store.save(sweep(chosen, Config(), store.earlier(), tree), tuple(one.id for one in chosen), 14)
            assert store.notes == [] and len(done.findings) == 3
    # and what is no number of SQLite's costs the memory of one sweep, not the sweep
    with open_store(tmp_path / "state") as store:
        done = replace(done, counters=(("ib.flap", "x", 2**70),))
        assert store.save(done, (), 14).findings == done.findings and "could not be remembered" in store.notes[0]


def test_a_counter_that_could_not_be_read_is_held_against_what_was_read_last(tmp_path: Path) -> None:
    # GIVEN a counter that cannot be read at the second of three sweeps, beside one that always can
    readings: list[int | None] = [5, None, 9]
    grown = []

    def counts(context: Context) -> Iterator[Finding]:
        growth = context.grown("errors", readings[len(grown)])
        grown.append((growth.amount, growth.first, growth.seconds))
        context.grown("other", 1)
        yield context.ok("x")

    tree = host(tmp_path / "root")
    for hour in range(3):
        put(tree, {"proc/uptime": f"{1e5 + 3600 * hour} 1.0\n"})
        with open_store(tmp_path / "state") as store:
            store.save(
                sweep([check("a.counts", counts)], Config(), store.earlier(), tree, NOW_S + 3600 * hour),
                ("a.counts",),
                14,
            )
    assert grown == [(0.0, True, 0.0), (0.0, False, 0.0), (4.0, False, 7200.0)]


def test_growth_over_a_boot_is_over_as_long_as_the_host_is_up_though_its_clock_was_set_back() -> None:
    earlier = Earlier({("gpu.ecc", "errors"): Reading(5.0, NOW_S, 1e6, "before")})
    context = Context("gpu.ecc", {}, now_s=NOW_S - 86400, uptime_s=7200.0, boot="after", earlier=earlier)
    assert context.grown("errors", 7, lifetime=True).per_hour == 1.0


def test_of_a_check_that_finds_too_much_the_worst_stays(tmp_path: Path) -> None:
    # GIVEN a crowd of warnings, something critical after them, and a failure
    def crowd(context: Context) -> Iterator[Finding]:
        for number in range(3 * MAX_FINDINGS_PER_CHECK):
            yield context.warning("x", 1.0, instance=f"{number}", expected="0", why="it is so", action="look")
        yield context.critical("x", 1.0, instance="late", expected="0", why="it is so", action="look")
        raise RuntimeError("broken")

    (*kept, critical, failed) = sweep([check("a.crowd", crowd)], Config(), Earlier(), host(tmp_path)).findings
    assert (critical.instance, critical.state, failed.state) == ("late", "critical", "unknown")
    assert [one.instance for one in kept] == [str(number) for number in range(MAX_FINDINGS_PER_CHECK - 1)]


def test_what_cannot_be_read_without_root_is_unknown_with_the_right(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to give it up")
    # The tree is reached as the working folder, so that nothing above it has to be opened to others.
    tree = host(tmp_path / "root")
    for folder in (tree, tree / "dev"):
        folder.chmod(0o755)
    (tree / "dev/kmsg").chmod(0)
    script = f"""if True:
        import os, sys
        sys.path[:0] = {[str(Path(__file__).parents[3]), str(Path(__file__).parents[2] / "builders")]!r}
        from pathlib import Path
        from sweep_trees import look
        os.setgid(65534); os.setuid(65534)
        (found,) = look(Path("."), "os.kmsg")
        print(found.state, found.action)
    """
    said = subprocess.run([sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=False)
    assert said.stdout == "unknown Run as root or with CAP_SYSLOG.\n", said.stderr


def test_exit_codes() -> None:
    assert [
        exit_code(states) for states in (["ok"], ["ok", "warning"], ["warning", "critical"], ["unknown", "ok"])
    ] == [0, 1, 2, 3]
    assert [exit_code(["warning", "unknown"], fail_on) for fail_on in ("unknown", "warning", "critical")] == [1, 1, 0]
    assert exit_code(["unknown"], "warning") == 0


# --- the store


def test_two_sweeps_never_overlap(tmp_path: Path) -> None:
    with open_store(tmp_path / "state"), pytest.raises(SweepRunning), open_store(tmp_path / "state"):
        pass
    with open_store(tmp_path / "state") as store:
        assert store.folder


def test_a_sweep_waits_until_another_and_its_hook_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a sweep that has found the host critical: its hook drains it now
    tree, state, config = host(tmp_path / "root", ib("mlx5_0")), tmp_path / "state", tmp_path / "sweep.toml"
    config.write_text("[sweep]\nhook_timeout_s = 30\nconfirm_s = 0\n")
    arguments = ["sweep", "--root", str(tree), "--state", str(state), "--only", "ib.port", "--config", str(config)]
    assert command_line(arguments) == 0
    lock, ended = os.open(state / "lock", os.O_RDWR), threading.Event()
    fcntl.flock(lock, fcntl.LOCK_EX)

    def ends() -> None:
        ended.set()
        os.close(lock)

    # WHEN a prolog sweeps it, too THEN its result comes after that
    hook = threading.Timer(0.15, ends)
    hook.start()
    assert command_line(arguments) == 0 and ended.is_set()
    hook.join()
    # but it waits no longer than a sweep may take
    config.write_text("[sweep]\nhook_timeout_s = 0.1\nconfirm_s = 0\ntimeout_s = 0.1\n")
    with open_store(state):
        assert command_line(arguments) == 3 and "another sweep is running" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 4096])
def test_a_broken_state_file_is_kept_aside_and_said(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "sweep.db").write_bytes(damage)
    with open_store(tmp_path) as store:
        assert "kept as" in store.notes[0]
        assert not store.earlier().counters
    assert any(path.name.startswith("sweep.db.broken-") and path.read_bytes() == damage for path in tmp_path.iterdir())


def test_since_is_when_the_state_began_and_history_forgets(tmp_path: Path) -> None:
    tree = host(tmp_path / "root", ib("mlx5_0"))
    chosen = [CHECKS["ib.flap"]]
    times, since = [NOW_S, NOW_S + 300, NOW_S + 600], []
    for now in times:
        with open_store(tmp_path / "state") as store:
            done = store.save(sweep(chosen, Config(), store.earlier(), tree, now), ("ib.flap",), 14)
            since.append(done.findings[0].since_s)
    assert since == [NOW_S] * 3
    with open_store(tmp_path / "state") as store:
        assert len(store.history(0, NOW_S + 600)) == 1
        store.save(sweep(chosen, Config(), store.earlier(), tree, NOW_S + 30 * 86400), ("ib.flap",), 14)
        assert store.history(0, NOW_S + 30 * 86400) == ()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/sweep.db").stat().st_mode & 0o777 == 0o600


def test_what_began_by_a_clock_that_was_ahead_has_begun_by_now(tmp_path: Path) -> None:
    found = Finding("ib.flap", "warning", "mlx5_0", "here", 1.0, "errors/h", "", "", "", None)
    since = []
    for now_s in (NOW_S + 86400, NOW_S, NOW_S + 60):
        with open_store(tmp_path / "state") as store:
            done = replace(sweep([], Config(), Earlier(), tmp_path, now_s), findings=(found,))
            since.append(store.save(done, ("ib.flap",), 14).findings[0].since_s)
    assert since == [NOW_S + 86400, NOW_S, NOW_S]


def remembered(folder: Path, now_s: float) -> tuple[int, list[str]]:
    """A sweep at that moment: how many entries the history has then, whenever they are of, and what the store has to say."""
    with open_store(folder) as store:
        found = Finding("ib.flap", "ok", "mlx5_0", "here", now_s, "errors/h", "", "", "", None)
        done = sweep([], Config(), Earlier(), folder, now_s)
        store.save(replace(done, findings=(found,)), ("ib.flap",), 14)
        return len(store.history(0.0, 1e12)), store.notes


@pytest.mark.parametrize("leap_s", [14 * 365 * 86400.0, 60.0 - NOW_S], ids=["2040", "1970"])
def test_a_clock_that_leaps_by_years_takes_no_history_with_it(tmp_path: Path, leap_s: float) -> None:
    state, hour = tmp_path / "state", 3600.0
    for number in range(5):
        assert remembered(state, NOW_S + number * hour) == (number + 1, [])
    # WHEN the clock is wrong for a while
    kept, (said,) = remembered(state, NOW_S + leap_s)
    assert kept == 6 and "years" in said and "set the clock" in said
    assert remembered(state, NOW_S + leap_s + hour) == (7, [])
    # THEN all is there when it is right again
    kept, (said,) = remembered(state, NOW_S + 10 * hour)
    assert kept == 8 and "years" in said
    with open_store(state) as store:
        assert [point.time_s for point in store.history(0.0 if leap_s > 0 else 1e6, NOW_S + 10 * hour)] == [
            NOW_S + number * hour for number in (0, 1, 2, 3, 4, 10)
        ]
    # WHEN it has been right for longer than what is kept, what the wrong one left goes
    for day in range(1, 40):
        kept, _ = remembered(state, NOW_S + day * 86400.0)
    assert kept == 15


def test_a_folder_that_cannot_be_written_means_no_memory_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with open_store(tmp_path / "file" / "state") as store:
        assert "no memory" in store.notes[0]


def test_trends_find_what_drifts_and_only_that() -> None:
    day = 86400.0
    calm = [Point(day * n, "gpu.throttle", "gpu1", "ok", 40.0 + n % 2, "°C") for n in range(7)]
    climb = [
        *(replace(point, instance="gpu0") for point in calm[:6]),
        Point(6 * day, "gpu.throttle", "gpu0", "ok", 60.0, "°C"),
    ]
    double = [
        Point(0.0, "pcie.aer", "a", "ok", 10.0, "errors/h"),
        Point(6 * day, "pcie.aer", "a", "ok", 31.0, "errors/h"),
    ]
    found = trends([*calm, *climb, *double], 7 * day)
    assert {(one.id, one.instance) for one in found} == {
        ("trend.temperature", "gpu.throttle gpu0"),
        ("trend.rate", "pcie.aer a"),
    }


# --- configuration


def test_thresholds_and_quirks_count(tmp_path: Path) -> None:
    text = '[check."disk.full"]\nwarning_percent = 0\ncritical_percent = 100\nfree_gb = 1e9\n'
    tree = host(tmp_path)
    for more, state, ignored in (("", "warning", 0), ('ignore = ["/*"]\n', "ok", 1)):
        done = sweep([CHECKS["disk.full"]], parse_config(text + more, all_checks()), Earlier(), tree)
        assert (done.state, done.ignored) == (state, ignored)


# --- output


def _sweep(tmp_path: Path, *findings: Finding) -> object:
    return replace(sweep([], Config(), Earlier(), host(tmp_path), NOW_S), findings=findings)


NASTY = Finding(
    "net.link", "critical", 'eth"0\\x', "/sys/" + "x" * 300, 'a\\"b', "", "up " * 60, "why " * 60, "do " * 60
)


@pytest.mark.parametrize("width", [40, 80, 200, None])
def test_what_is_told_fits_the_terminal_and_a_pipe_gets_the_state_with_all_that_is_said_of_it_as_its_last_line(
    width: int | None, tmp_path: Path
) -> None:
    done = _sweep(tmp_path, NASTY, replace(NASTY, state="ok"), replace(NASTY, state="unknown", value=None))
    done = replace(done, host="node-with-a-long-name-" * 3)  # type: ignore[type-var]
    for verbose in (False, True):
        *lines, last = list(as_text(done, verbose, width))  # type: ignore[arg-type]
        assert max(len(line) for line in lines if "node-with" not in line) <= (width or 80)  # no name is cut
        assert not [line for line in lines if line.startswith("critical:")] or width
        if width is None:
            assert last.startswith("critical: node-with-a-long-name-") and last.endswith(" s") and len(last) > 80


def test_json_has_its_parts(tmp_path: Path) -> None:
    content = json.loads(json.dumps(as_json(_sweep(tmp_path, NASTY)), allow_nan=False))  # type: ignore[arg-type]
    assert content["schema"] == "rankscope.sweep/1" and content["host"] == "node-7"
    assert set(content) == {"schema", "host", "time", "findings", "summary", "notes"}
    assert content["summary"]["state"] == "critical" and content["summary"]["counts"]["critical"] == 1


def test_processes_are_no_labels(tmp_path: Path) -> None:
    done = _sweep(
        tmp_path,
        replace(NASTY, id="fs.stuck", instance="cp (7)"),
        replace(NASTY, id="fs.stuck", instance="cp (8)", state="ok"),
    )
    text = as_prometheus(done, {"fs.stuck"})  # type: ignore[arg-type]
    assert 'rankscope_sweep_state{check="fs.stuck",device=""} 2' in text and "cp (" not in text


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (scripts/setup --lab fetches it)")
def test_promtool_accepts_the_metrics(tmp_path: Path) -> None:
    text = as_prometheus(_sweep(tmp_path, NASTY, replace(NASTY, instance="b", value=7.5, unit="%")))  # type: ignore[arg-type]
    said = subprocess.run([str(PROMTOOL), "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr + said.stdout


# --- many hosts


def _hosts(count: int, odd: object, value: object) -> list[HostSweep]:
    key = ("driver.versions", "nvidia module")
    return [HostSweep(f"n{n}", "ok", {key: odd if n == 3 else value}) for n in range(count)]  # type: ignore[dict-item]


def test_the_odd_host_is_named() -> None:
    assert [(one.host, one.value) for one in odd_ones(_hosts(7, "550.1", "570.1"))] == [("n3", "550.1")]
    assert [one.host for one in odd_ones(_hosts(7, 1410.0, 1980.0))] == ["n3"]
    assert odd_ones(_hosts(7, "570.1", "570.1")) == () and odd_ones(_hosts(7, 1979.0, 1980.0)) == ()
    missing = _hosts(7, "570.1", "570.1")
    missing[3].values.clear()
    assert [(one.host, one.value) for one in odd_ones(missing)] == [("n3", "missing")]


def test_what_is_wrong_on_a_host_is_named_the_worst_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its check, a few of many, and all of them for -v and programs."""
    states = {"mem.oom": ("warning", "killed: python (pid 7)"), "gpu.lost": ("critical", ""), "os.kmsg": ("unknown", "denied"),
              "fs.stuck": ("warning", "hangs"), "cpu.mce": ("ok", "")}  # fmt: skip
    for host_name, kinds in (("n1", states), ("n2", {"cpu.mce": ("ok", "")})):
        findings = [
            {"id": check, "instance": "", "value": None, "state": state, "why": why}
            for check, (state, why) in kinds.items()
        ]
        state = "critical" if host_name == "n1" else "ok"
        said = {
            "schema": "rankscope.sweep/1",
            "host": host_name,
            "time": "t",
            "findings": findings,
            "summary": {"state": state},
        }
        (tmp_path / f"{host_name}.json").write_text(json.dumps(said))
    assert command_line(["sweep", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["n1: critical: gpu.lost", "n1: warning: mem.oom: killed: python (pid 7)", "n1: warning: fs.stuck: hangs",
                         "n1: 1 more with -v"]  # fmt: skip
    assert not any(line.startswith("n2") for line in lines)
    assert (
        command_line(["sweep", str(tmp_path), "-v"]) == 2 and "n1: unknown: os.kmsg: denied" in capsys.readouterr().out
    )
    assert command_line(["sweep", str(tmp_path), "--json"]) == 2
    (first, second) = json.loads(capsys.readouterr().out)["hosts"]
    assert [one["id"] for one in first["wrong"]] == ["gpu.lost", "mem.oom", "fs.stuck", "os.kmsg"] and second[
        "wrong"
    ] == []


@given(st.binary(max_size=200))
def test_a_file_that_is_no_sweep_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_sweep(data)


@given(st.binary(max_size=300))
def test_any_record_of_the_log_is_read_or_refused(data: bytes) -> None:
    message = parse_record(data)
    assert message is None or 0 <= message.level <= 7


# --- the command line


def at_once(folder: Path) -> Path:
    """A configuration that looks a second time without waiting."""
    config = folder / "at-once.toml"
    config.write_text("[sweep]\nconfirm_s = 0\n")
    return config


def test_a_bare_virtual_machine_ends_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = host(tmp_path / "root")
    arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "state"), "--json"]
    assert command_line(arguments) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["summary"]["counts"] == {**content["summary"]["counts"], "warning": 0, "critical": 0, "unknown": 0}
    assert len(content["findings"]) + len(content["summary"]["not_applicable"]) >= len(CHECKS)
    # THEN nothing was written outside of the state folder
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"lock", "sweep.db"}


def test_a_critical_host_ends_2_and_calls_the_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = host(tmp_path / "root", ib("mlx5_0"))
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/got; echo $RANKSCOPE_STATE >> {tmp_path}/state-seen\n")
    hook.chmod(0o755)
    arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "state"), "--hook", str(hook), "--only", "ib",
                 "--config", str(at_once(tmp_path))]  # fmt: skip
    assert command_line(arguments) == 0 and not (tmp_path / "got").exists()
    put(tree, ib("mlx5_0", "1: DOWN"))
    assert command_line(arguments) == 2
    assert json.loads((tmp_path / "got").read_text())["summary"]["state"] == "critical"
    assert (tmp_path / "state-seen").read_text() == "critical\n"
    assert "CRITICAL  ib.port mlx5_0/1: DOWN (Polling)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "said"), [("exit 3", "exit code 3"), ("sleep 60", "killed"), (None, "No such file")]
)
def test_a_hook_that_fails_or_hangs_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str | None, said: str
) -> None:
    tree = host(tmp_path / "root", {"dev/kmsg": "3,1,7,-;Kernel panic - not syncing: x\n"})
    hook, config = tmp_path / "hook", tmp_path / "sweep.toml"
    config.write_text("[sweep]\nhook_timeout_s = 0.3\nconfirm_s = 0\n")
    if script:
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o755)
    arguments = ["sweep", "--root", str(tree), "--state", str(tmp_path / "s"), "--hook", str(hook)]
    assert command_line([*arguments, "--config", str(config)]) == 2
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "arguments", [["--only", "no.such"], ["--explain", "nope"], ["--fail-on", "x"], ["--config", "/nonexistent/x.toml"]]
)
def test_wrong_usage_ends_64(tmp_path: Path, arguments: list[str]) -> None:
    assert command_line(["sweep", "--root", str(host(tmp_path)), "--state", str(tmp_path / "s"), *arguments]) == 64


def test_textfile_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "rankscope.prom"
    target.write_text("old")
    root = str(host(tmp_path / "root"))
    arguments = ["sweep", "--root", root, "--state", str(tmp_path / "s"), "--textfile", str(target)]
    assert command_line(arguments) == 0
    assert "rankscope_sweep_last_run_timestamp_seconds" in target.read_text() and target.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.glob(".rankscope*")] == []
    assert command_line([*arguments[:-1], str(tmp_path / "none" / "x.prom")]) == 69


def test_what_a_killed_writer_left_beside_a_textfile_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "rankscope.prom"
    # GIVEN a service that is killed as it writes, twice, and one that was not
    for _ in range(2):
        killed_as_it_renames(lambda: write_atomically(target, "half"), monkeypatch)
        assert len(list(tmp_path.iterdir())) == 1  # the second one removed what the first left
    write_atomically(target, "whole")
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_many_hosts_are_compared_from_their_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        tree = host(tmp_path / f"root{number}", {"proc/sys/kernel/hostname": f"node-{number}\n"})
        if number == 2:
            put(tree, {"proc/sys/kernel/osrelease": "5.15.0\n"})
        command_line(["sweep", "--root", str(tree), "--state", str(tmp_path / f"s{number}"), "--json"])
        (tmp_path / "all").mkdir(exist_ok=True)
        (tmp_path / f"all/{number}.json").write_text(capsys.readouterr().out)
    (tmp_path / "all/broken.json").write_text("{")
    assert command_line(["sweep", str(tmp_path / "all")]) == 1
    said = capsys.readouterr().out
    assert "node-2" in said and "5.15.0" in said and "1 odd values" in said and "broken.json" in said
