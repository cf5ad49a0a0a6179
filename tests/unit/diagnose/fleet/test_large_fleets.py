"""Fleets of many hosts: the same verdict as in full and on every engine, and nobody odd is left out."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import columns
from stored import send

from benchkit.fleet_windows import START, Plan, plan, window_of
from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli import diagnose as command
from rankscope.diagnose.infer.fleet.large import engines, placed, stand_out, survey
from rankscope.diagnose.infer.fleet.large.crowd import Crowd, crowd_of
from rankscope.diagnose.infer.fleet.roll_call import choose
from rankscope.diagnose.infer.fleet.sources import find, load
from rankscope.diagnose.infer.solve import judge, large_fleet
from rankscope.diagnose.infer.solve.large_fleet import diagnose_large
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.observer.window.store import front
from rankscope.observer.window.store.container import decode, encode
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.users import called
from rankscope.probes.base.errors import BadData, UsageError

HOSTS = 48


@pytest.fixture(scope="module")
def fleet() -> Plan:
    return plan(HOSTS, 0.05, 3, {"rank": 3, "host": 1, "rack": 1})


@pytest.fixture(scope="module")
def folder(fleet: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fleet's objects."""
    place = tmp_path_factory.mktemp("fleet")
    for host in range(HOSTS):
        window = window_of(fleet, host, 0, HOSTS)
        send(place.as_uri(), window)
    return place


@pytest.fixture
def few_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of thousands of hosts: 16 of them are the sample, one rank of each step the longest."""
    monkeypatch.setattr(stand_out, "_SAMPLE_HOSTS", 16)
    monkeypatch.setattr(stand_out, "LONGEST", 1)


@contextmanager
def here() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def judged(folder: Path) -> Verdict:
    with here() as pool:
        [(_, verdict)] = diagnose_large(find([folder]), None, pool)
    return verdict


@pytest.fixture(scope="module")
def by_sample(folder: Path) -> Verdict:
    """The verdict of the fleet where a few hosts are read in full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stand_out, "_SAMPLE_HOSTS", 16)
        patch.setattr(stand_out, "LONGEST", 1)
        return judged(folder)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Verdict:
    """The verdict of the fleet as of a small one."""
    return judge.diagnose(load([folder]).windows)


def without_note(verdict: Verdict) -> str:
    kept = tuple(note for note in verdict.notes if note.code is not NoteCode.READ_IN_FULL)
    return to_json(replace(verdict, notes=kept))


def test_where_all_is_read_in_full_the_verdict_is_that_of_a_small_fleet(folder: Path, plain: Verdict) -> None:
    assert without_note(judged(folder)) == to_json(plain)
    assert plain.suspects


@pytest.fixture
def placed_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of jobs of more hosts: a sample of the windows says what the iterations are, and each group puts its steps in columns."""
    monkeypatch.setattr(placed, "MANY", 8)
    monkeypatch.setattr(placed, "_SAMPLE", HOSTS)  # who is the reference is the same then
    monkeypatch.setattr(large_fleet, "GROUP", 7)


def test_where_workers_put_steps_in_columns_the_verdict_is_the_same(
    folder: Path, plain: Verdict, placed_by_workers: None
) -> None:
    assert without_note(judged(folder)) == to_json(plain)


def test_a_fleet_in_which_nobody_shows_a_step_is_told_so(fleet: Plan, tmp_path: Path) -> None:
    for host in range(3):
        window = window_of(fleet, host, 0, 3)
        window = replace(window, steps=window.steps.slice(0, 0))
        send(tmp_path.as_uri(), window)
    verdict = judged(tmp_path)
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert NoteCode.NO_STEPS in {note.code for note in verdict.notes}


def test_a_sample_of_a_few_hosts_accuses_the_same(
    folder: Path, fleet: Plan, placed_by_workers: None, few_in_full: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed, "_SAMPLE", 6)
    accused = {rank for suspect in judged(folder).suspects for rank in suspect.ranks}
    assert accused == {rank for planted in fleet.planted for rank in planted.ranks}


def test_steps_put_in_columns_by_groups_are_those_put_in_columns_together(
    fleet: Plan, tmp_path: Path, placed_by_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With clocks that differ, a host without steps, one that reports ranks of another, and steps that cannot be."""
    for host in range(HOSTS):
        window = window_of(fleet, host, 0, HOSTS)
        offset_s = 0.02 * (host % 5) if host else 0.0
        window = replace(window, manifest=replace(window.manifest, start=window.manifest.start + offset_s))
        if host == 11:
            window = replace(window, steps=window.steps.slice(0, 0))
        if host == 12:
            seconds = window.steps["seconds"].to_numpy().copy()
            seconds[:3] = (-1.0, np.inf, 1e6)
            place = window.steps.column_names.index("seconds")
            window = replace(window, steps=window.steps.set_column(place, "seconds", pa.array(seconds, pa.float32())))
        send(tmp_path.as_uri(), window)
    by_groups = crowd_in(tmp_path)
    monkeypatch.setattr(placed, "MANY", HOSTS)
    together = crowd_in(tmp_path)
    assert by_groups[1] == together[1]
    codes = {note.code for note in by_groups[1]}
    assert {NoteCode.STEPS_IMPOSSIBLE, NoteCode.STEPS_DIFFER, NoteCode.CLOCKS_DIFFER} <= codes
    for name in placed.SEEN:
        np.testing.assert_array_equal(getattr(by_groups[0].steps, name), getattr(together[0].steps, name))
    np.testing.assert_array_equal(by_groups[0].columns.added_s, together[0].columns.added_s)
    assert np.isfinite(by_groups[0].steps.own_s).any(axis=1).sum() == 8 * (HOSTS - 1)


def test_a_group_of_hosts_of_which_none_shows_a_step_is_put_with_the_others(
    folder: Path, fleet: Plan, tmp_path: Path, placed_by_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_seven_silent(folder, tmp_path)
    by_groups, said = crowd_in(tmp_path)
    monkeypatch.setattr(placed, "MANY", HOSTS)
    together, also_said = crowd_in(tmp_path)
    assert said == also_said
    np.testing.assert_array_equal(by_groups.steps.own_s, together.steps.own_s)
    assert np.isfinite(by_groups.steps.own_s).any(axis=1).sum() == 8 * (HOSTS - 7)


@pytest.mark.parametrize("by_groups", [True, False])
def test_ranks_without_steps_get_no_rows_beyond_the_room_for_them(
    folder: Path, tmp_path: Path, placed_by_workers: None, monkeypatch: pytest.MonkeyPatch, by_groups: bool
) -> None:
    with_seven_silent(folder, tmp_path)
    monkeypatch.setattr(budgets, "CELLS_MOST", 100)
    monkeypatch.setattr(budgets, "EMPTY_MOST", 1)
    if not by_groups:
        monkeypatch.setattr(placed, "MANY", HOSTS)
    with pytest.raises(BadData, match="ranks are claimed and show"):
        crowd_in(tmp_path)


def test_a_job_whose_steps_have_no_room_leaves_the_columns_of_the_others_as_they_are(
    folder: Path, tmp_path: Path, placed_by_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN beside the fleet another job, of whose twenty hosts one shows steps
    for place, path in enumerate(sorted(folder.rglob("*.parquet"))):
        [window] = decode(path.read_bytes())
        other = called(window, {"synthetic": "claim"})
        if place:
            other = replace(other, steps=other.steps.slice(0, 0))
        for each in [window, other][: 2 if place < 20 else 1]:
            send(tmp_path.as_uri(), each)
    monkeypatch.setattr(budgets, "CELLS_MOST", 100)
    # WHEN
    with here() as pool:
        verdicts = {verdict.job: verdict for _, verdict in diagnose_large(find([tmp_path]), None, pool)}
    # THEN
    assert verdicts["claim"].notes[0].code is NoteCode.NOT_JUDGED
    assert verdicts["synthetic"].suspects == judged(folder).suspects != ()


def with_seven_silent(folder: Path, copy: Path) -> None:
    """What lies there, seven hosts side by side without steps."""
    silent = {source.path.rpartition("/")[2] for source in find([folder]).chosen[7:14]}
    for path in folder.rglob("*.parquet"):
        [window] = decode(path.read_bytes())
        if path.name in silent:
            window = replace(window, steps=window.steps.slice(0, 0))
        send(copy.as_uri(), window)


def crowd_in(folder: Path) -> tuple[Crowd, list[Note]]:
    """The ranks of what lies there, with what is said of them."""
    found = find([folder])
    sample = survey.survey(placed.sample_of(found.chosen))
    grids = placed.grids_of(sample.roll, sample.begins_s, sample.steps)
    groups = range(0, HOSTS, 7)
    seen = survey.together((at, survey.survey(found.chosen[at : at + 7], grids)) for at in groups)
    assert bool(seen.placed) == bool(grids)
    notes: list[Note] = []
    job, windows = choose(seen.roll, "synthetic", notes)
    return crowd_of(seen, job, windows, grids.get(job), notes), notes


def test_a_sample_of_another_moment_than_most_windows_is_not_believed(
    folder: Path, tmp_path: Path, placed_by_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores are given: one holds an earlier moment of some hosts, which a sample may have seen."""
    for path in sorted(folder.rglob("*.parquet"))[:20]:
        [window] = decode(path.read_bytes())
        window = replace(window, manifest=replace(window.manifest, start=window.manifest.start - 600))
        send(tmp_path.as_uri(), window)
    found = find([tmp_path, folder])
    monkeypatch.setattr(large_fleet, "sample_of", lambda sources: sources[:20])
    with here() as pool:
        [(_, verdict)] = diagnose_large(found, None, pool)
    assert {suspect.ranks for suspect in verdict.suspects} == {suspect.ranks for suspect in judged(folder).suspects}
    assert verdict.suspects


def test_objects_without_a_summary_give_the_same_verdict(
    folder: Path, tmp_path: Path, by_sample: Verdict, few_in_full: None
) -> None:
    """Half of them, as of hosts of two versions."""
    for number, path in enumerate(sorted(folder.rglob("*.parquet"))):
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes().replace(front.MARK, b"RKSUMRY?") if number % 2 else path.read_bytes())
    assert to_json(judged(tmp_path)) == to_json(by_sample)


def test_culprits_are_found_where_only_a_part_is_read_in_full(fleet: Plan, by_sample: Verdict) -> None:
    verdict = by_sample
    accused = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    assert accused == {rank for planted in fleet.planted for rank in planted.ranks}
    assert len(verdict.ranks) == 8 * HOSTS
    assert len(verdict.hosts) == HOSTS
    [note] = [note for note in verdict.notes if note.code is NoteCode.READ_IN_FULL]
    read = int(note.text.partition("; ")[2].partition(" of them")[0])
    assert read < 8 * HOSTS


@pytest.mark.parametrize("engine", ["local", "dask", "ray"])
def test_every_engine_gives_the_same_verdict(
    folder: Path, by_sample: Verdict, few_in_full: None, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine != "local":
        pytest.importorskip({"dask": "distributed"}.get(engine, engine), reason=f"pip install -e '.[{engine}]'")
    monkeypatch.setattr(large_fleet, "GROUP", 7)
    with engines.started(engine, 2) as pool:
        [(_, verdict)] = diagnose_large(find([folder]), None, pool)
    assert to_json(verdict) == to_json(by_sample)


def test_ray_starts_beside_what_is_done_first(folder: Path, by_sample: Verdict, few_in_full: None) -> None:
    ray = pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    with engines.beginning("ray", 1):
        found = find([folder])
        with engines.started("ray", 1) as pool:
            assert pool.submit(os.getpid).result() != os.getpid()
            [(_, verdict)] = diagnose_large(found, None, pool)
    assert not ray.is_initialized()
    assert to_json(verdict) == to_json(by_sample)


def test_what_fails_while_ray_starts_is_said_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="pip install -e '.[ray]'")

    def unreachable(**_: object) -> None:
        raise ConnectionError("no cluster there")

    monkeypatch.setattr(ray, "init", unreachable)
    with engines.beginning("ray"):
        pass
    with (
        pytest.raises(engines.EngineFailed, match="no cluster there"),
        engines.beginning("ray"),
        engines.started("ray") as pool,
    ):
        pool.submit(os.getpid)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_an_engine_that_is_let_go_ends_beside_what_is_done_then(engine: str) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    with engines.started(engine, 1) as pool:
        numbers = pool.submit(np.arange, 1_000_000).result()  # of Ray's in memory that its processes share
        worker = pool.submit(os.getpid).result()
        engines.let_go(pool)
        until = time.monotonic() + 30
        while Path(f"/proc/{worker}").exists() and time.monotonic() < until:
            time.sleep(0.05)
        assert not Path(f"/proc/{worker}").exists()
        assert int(numbers.sum()) == 499_999_500_000  # what it gave is still there


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_no_worker_that_is_ours_loads_pandas(engine: str) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    with engines.started(engine, 1) as pool:
        refused = pool.submit(importlib.import_module, "pandas").exception()
    assert isinstance(refused, ModuleNotFoundError) and "does without" in str(refused)


def test_a_host_that_is_missing_is_told(folder: Path, tmp_path: Path, few_in_full: None) -> None:
    for path in sorted(folder.rglob("*.parquet"))[1:]:
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    sorted(tmp_path.rglob("*.parquet"))[0].write_bytes(b"half of a")
    verdict = judged(tmp_path)
    codes = [note.code for note in verdict.notes]
    assert NoteCode.OBJECTS_LEFT_OUT in codes
    assert any(note.code is NoteCode.RANKS_MISSING and note.text.startswith("16 of 384") for note in verdict.notes)
    assert verdict.status == "fault"


def test_a_store_of_unreadable_objects_is_one_line(tmp_path: Path, folder: Path) -> None:
    for path in sorted(folder.rglob("*.parquet")):
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"")
    with pytest.raises(BadData, match="none of 48 windows"):
        judged(tmp_path)


def test_the_command_reads_large_fleets_on_its_engine(
    folder: Path, few_in_full: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_fleet, "LARGE", 16)
    monkeypatch.setattr(engines, "started", lambda engine: here())
    code = command.run(
        folders=(str(folder),),
        baseline=(),
        steps=None,
        window_s=20.0,
        at_most_s=20.0,
        job=None,
        pids=(),
        as_json=True,
        verbose=False,
    )
    assert code == 1
    assert "were compared by their steps" in capsys.readouterr().out


def test_an_engine_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, module in (("ray", "ray"), ("dask", "distributed")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(engines.EngineMissing, match=f"{engine} is not installed"):
            engines.check(engine)
    with pytest.raises(UsageError):
        engines.check("spark")


def test_an_engine_that_dies_in_the_middle_is_one_line() -> None:
    with pytest.raises(engines.EngineFailed, match="the engine local failed"), engines.started("local", 1) as pool:
        pool.submit(os._exit, 1).result()


def test_what_is_wrong_with_a_window_is_not_the_engines_fault(tmp_path: Path) -> None:
    with pytest.raises(BadData), engines.started("local", 1) as pool:
        pool.submit(load, [tmp_path / "nothing"]).result()


def test_who_did_not_run_all_the_time_is_read_in_full(folder: Path, few_in_full: None) -> None:
    seen = survey.together([(0, survey.survey(find([folder]).chosen))])
    job, windows = choose(seen.roll, "synthetic", [])
    crowd = crowd_of(seen, job, windows, None, [])
    with here() as pool:
        before = stand_out.hosts_to_read(crowd, pool)
    host = next(name for name in crowd.hosts.names if name not in before)
    row = int(np.flatnonzero(crowd.hosts.of_rank == crowd.hosts.names.index(host))[0])

    def changed(name: str, value: float) -> Crowd:
        column = getattr(crowd, name).copy()
        column[row] = value
        return replace(crowd, **{name: column})

    for name, value in (
        ("running", 0.0),
        ("errors", 3.0),
        ("errors_hz", 3.0),
        ("rate_hz", 0.2 * crowd.rate_hz[row]),
        ("stopped_s", 1.0),
        ("lacking", 1.0),
    ):
        with here() as pool:
            assert host in stand_out.hosts_to_read(changed(name, value), pool), name


def test_a_rank_that_had_ended_before_anybody_looked_is_named(fleet: Plan, tmp_path: Path, few_in_full: None) -> None:
    # GIVEN ranks that wait in a collective all through the window, but the sixth of one host, which is no process there
    number = HOSTS // 2 * 8 + 5
    for host in range(HOSTS):
        window = window_of(fleet, host, 0, HOSTS)
        rows = [
            {**row, "last_progress_s": None, "in_collective_s": window.manifest.seconds}
            for row in window.ranks.to_pylist() if row["rank"] != number
        ]  # fmt: skip
        said = [{"scope": "rank", "rank": number, "name": "census.gone", "kind": "gauge", "value": 1.0}] * (
            len(rows) < 8
        )
        counters = [*(row for row in window.counters.to_pylist() if row["rank"] != number), *said]
        window = columns(columns(replace(window, steps=window.steps.slice(0, 0)), "ranks", rows), "counters", counters)
        send(tmp_path.as_uri(), window)
    verdict = judged(tmp_path)
    assert (verdict.status, [(one.cause, one.ranks) for one in verdict.suspects]) == ("hang", [("exited", (number,))])


def test_a_slow_connection_between_two_hosts_is_named_with_both_ends(
    fleet: Plan, tmp_path: Path, few_in_full: None
) -> None:
    """Of which the sample holds neither: whoever sends waits for what the other one acknowledges."""
    quiet = replace(fleet, planted=())
    for host in range(HOSTS):
        window = window_of(quiet, host, 0, HOSTS)
        if host == 22:
            slow = pa.array(8.0 * window.flows["busy_s"].to_numpy(), pa.float32())
            window = replace(
                window,
                flows=window.flows.set_column(
                    window.flows.column_names.index("busy_s"), window.flows.schema.field("busy_s"), slow
                ),
            )
        send(tmp_path.as_uri(), window)
    links = [suspect for suspect in judged(tmp_path).suspects if suspect.cause == "slow-link"]
    assert [link.host in ("node-000022", "node-000023") for link in links] == [True]
    assert "between 10.0.0.22 and 10.0.0.23" in links[0].action


def test_the_slow_rank_on_a_host_whose_clock_is_an_hour_off_is_named(
    fleet: Plan, folder: Path, tmp_path: Path, few_in_full: None
) -> None:
    [rank] = [one.ranks[0] for one in fleet.planted if one.scope == "rank"][:1]
    for path in sorted(folder.rglob("*.parquet")):
        [window] = decode(path.read_bytes())
        if rank in window.ranks["rank"].to_pylist():
            window = replace(window, manifest=replace(window.manifest, start=window.manifest.start + 3600.37))
        target = tmp_path / key_of(window.manifest)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(encode([window]))
        os.utime(target, (START + 4000, START + 4000))  # a store that was copied: all came at one time
    verdict = judged(tmp_path)
    assert verdict.ranks == tuple(range(8 * HOSTS))
    assert {rank for suspect in verdict.suspects for rank in suspect.ranks} == {
        rank for planted in fleet.planted for rank in planted.ranks
    }
    assert "60 min ahead" in " ".join(note.text for note in verdict.notes if note.code is NoteCode.CLOCKS_DIFFER)
    assert NoteCode.HOSTS_MISSING not in {note.code for note in verdict.notes}


def test_hosts_of_one_name_are_two_in_a_large_fleet(fleet: Plan, tmp_path: Path, few_in_full: None) -> None:
    for host in range(HOSTS):
        window = window_of(fleet, host, 0, HOSTS)
        about = replace(window.manifest, machine=f"{host:04x}", host="localhost" if host < 20 else window.manifest.host)
        send(tmp_path.as_uri(), replace(window, manifest=about))
    verdict = judged(tmp_path)
    assert len(verdict.ranks) == 8 * HOSTS
    assert [name for name in verdict.hosts if "localhost" in name] == [f"localhost~{host:04x}" for host in range(20)]
    accused = {rank for suspect in verdict.suspects for rank in suspect.ranks}
    assert accused == {rank for planted in fleet.planted for rank in planted.ranks}
