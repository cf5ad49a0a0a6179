"""Bundles: the same verdict anywhere, nobody's names, small, and read with every reason to distrust them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pyarrow as pa
import pytest
from builders import Job, build
from hostile import EVIL, hostile
from paused import paused

from corpuskit.archive import Corpus, archives, cases_in, name_of, opened
from corpuskit.case import Case
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window import bundle
from rankscope.observer.window.bundle import Bundle, is_bundle, pack, read_bundle
from rankscope.observer.window.folder import Window, read_window, write_window
from rankscope.observer.window.renamed import Renaming
from rankscope.observer.window.schema import TABLES
from rankscope.probes.base.errors import BadData, UsageError

SMALL_BYTES = 100 << 10  # for 8 ranks


def passed_on(windows: list[Window], baseline: list[Window], place: Path) -> Bundle:
    """The same windows as somebody else gets them, without names."""
    renaming = Renaming()
    mine, earlier = ([renaming.window(window) for window in each] for each in (windows, baseline))
    place.write_bytes(pack(mine, earlier, names_kept=False))
    return read_bundle(place)


def bare(verdict: Verdict) -> list[Any]:
    """A verdict without names: who by number, why, how much, how sure."""
    suspects = [
        (one.component, one.cause, one.scope, one.ranks, round(one.lost_seconds_per_step, 6), round(one.confidence, 3),
         one.function.line if one.function else None, [(each.source, each.peers) for each in one.evidence])
        for one in verdict.suspects
    ]  # fmt: skip
    return [
        verdict.status,
        verdict.ranks,
        verdict.steps,
        suspects,
        [note.code for note in verdict.notes if note.code != "observer"],
    ]


@pytest.fixture(scope="module")
def corpus() -> Iterator[Corpus]:
    """What is looked at of the corpus: the archives of these cases are unpacked alone."""
    cases = [case for place in archives() for case in cases_in(place)]
    wanted = {case.archive for case in some(cases)}
    with opened([place for place in archives() if name_of(place) in wanted]) as unpacked:
        yield unpacked


def some(cases: Sequence[Case]) -> list[Case]:
    """Of every kind of case the first; of those with a baseline the first of each job, dose and status."""
    found: dict[tuple[str, ...], Case] = {}
    for case in cases:
        found.setdefault((case.kind,), case)
        if case.baseline:
            found.setdefault((case.kind, case.job, case.dose, case.truth.status), case)
    return list({case.key: case for case in found.values()}.values())


def test_recorded_windows_are_judged_alike_without_their_names_and_are_small(corpus: Corpus, tmp_path: Path) -> None:
    place, differing, sizes = tmp_path / "bundle", [], []
    for case in some(corpus.cases):
        windows, baseline = (
            [read_window(one) for one in each] for each in (corpus.windows(case), corpus.baseline(case))
        )
        got = passed_on(windows, baseline, place)
        sizes.append(place.stat().st_size / max(case.ranks * (1 + len(baseline)), 8) * 8)
        if bare(diagnose(windows, baseline)) != bare(diagnose(got.windows, got.baseline)):
            differing.append(case.key)
    assert differing == []
    assert max(sizes) < SMALL_BYTES, sorted(sizes)


def texts_of(window: Window) -> set[str]:
    found = {window.manifest.host, *window.manifest.jobs, *window.manifest.notes}
    for name in TABLES:
        for column in getattr(window, name).columns:
            if pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
                found |= {text for cell in column.to_pylist() for text in cell or ()}
            elif pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
                found |= set(column.to_pylist())
    return {text for text in found if text}


PRIVATE = {
    "job": "acme-llm", "host": "dgx-acme-07", "node": "pod-secret", "role": "stage-secret", "container": "deadbeef01",
    "command": "python /home/alice/secret_model/train.py --key=hunter2", "title": "secret title",
    "addresses": ["172.31.7.9"], "owner": 4711,
}  # fmt: skip


def a_private_window() -> Window:
    secret = builders.Work(
        "python", "SecretNet.forward", 0, 7, "/home/alice/secret_model/net.py", native="libsecret_kernel.so"
    )
    package = builders.Work(
        "python", "attention_secret", 0, 9, "/opt/acme/lib/python3.11/site-packages/acme_secret/core.py"
    )
    read = builders.Work("io", "read", 0, 40, detail="/mnt/acme-data (lustre 0:44)", caller="SecretSet.load")
    held = builders.Work(
        "sync",
        "gil",
        0,
        40,
        detail="gil",
        caller="SecretSet.load",
        holder=("steal", "/home/alice/h.py", 3, "secret-pool_0"),
    )
    job = Job(ranks=2, extra={1: [(secret, 0.02), (package, 0.01), (read, 0.01), (held, 0.01)]}, name="acme-llm")
    job.ranks_columns = {0: PRIVATE, 1: PRIVATE}
    job.counters = [
        {"rank": 1, "name": "cpu.taken_s", "comm": "acme-backup", "pid": 7, "value": 1.0},
        {"scope": "cgroup", "rank": 1, "instance": "/slurm/uid_4711/job_acme", "name": "cpu.throttled_s", "value": 0.0},
        {"scope": "thread", "rank": 1, "instance": "secret-pool: acme_spin (3 threads)", "name": "thread.run_s", "value": 0.1},
    ]  # fmt: skip
    window = build(job)[0]
    manifest = replace(window.manifest, host="dgx-acme-07", notes=("process acme-proxy on 172.31.7.9 was rejected",))
    return replace(window, manifest=manifest)


def test_no_name_of_job_host_user_or_code_is_left_and_numbers_stay() -> None:
    window = a_private_window()
    renamed = Renaming().window(window)
    left = " ".join(texts_of(renamed)).lower()
    for secret in (
        "acme",
        "secret",
        "alice",
        "hunter2",
        "dgx",
        "172.31",
        "deadbeef",
        "augment",
        "tokenize",
        "/job",
        "198.18",
        "4711",
    ):
        assert secret not in left, secret
    for kept in (
        "linear.forward",
        "/site-packages/torch/nn/modules/linear.py",
        "allreduce",
        "(lustre 0:44)",
        "<module>",
        "_forward",
    ):
        assert kept in left, kept
    assert set(renamed.ranks["owner"].to_pylist()) == {1001}
    for name in TABLES:
        before, after = getattr(window, name), getattr(renamed, name)
        assert before.schema.types == after.schema.types and before.num_rows == after.num_rows
        for column in before.column_names:
            if pa.types.is_floating(before[column].type):
                assert before[column].equals(after[column])


def test_what_a_pause_is_inside_of_keeps_its_name_where_a_public_library_has_it() -> None:
    window = build(Job(ranks=2))[0]
    frames = zip(window.stacks["name"].to_pylist(), window.stacks["file"].to_pylist(), strict=True)
    public = next(name for name, file in frames if "/site-packages/torch/" in file)
    for inside in (public, "acme_write"):
        window = paused(window, ("SecretSet.load", 7, inside), 0.2, (3, 7), (0,), file="/home/alice/secret.py")
    kept, renamed = Renaming().window(window).pauses["inside"].to_pylist()
    assert kept == public and "acme" not in renamed and renamed.endswith("_write")


def test_one_name_becomes_one_name_in_all_windows_and_tables() -> None:
    renaming = Renaming()
    windows = build(builders.slow_link(1, 0.1, hosts=2))
    renamed = [renaming.window(window) for window in windows]
    assert (
        len({window.manifest.jobs for window in renamed}) == 1
        and len({window.manifest.host for window in renamed}) == 2
    )
    addresses = {address for window in renamed for cell in window.ranks["addresses"].to_pylist() for address in cell}
    locals_ = {text.rpartition(":")[0] for window in renamed for text in window.flows["local"].to_pylist()}
    assert addresses == locals_ and len(addresses) == 8
    slow = [diagnose(each).suspects[0].ranks for each in (windows, renamed)]
    assert slow[0] == slow[1]


def test_names_that_mean_harm_become_harmless_ones(tmp_path: Path) -> None:
    got = passed_on(hostile(Job()), [], tmp_path / "bundle")
    left = " ".join(texts_of(got.windows[0]))
    assert not any(evil in left for evil in EVIL[:4])


@pytest.fixture
def windows(tmp_path: Path) -> Path:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "windows")
    return tmp_path / "windows"


def test_a_bundle_is_given_to_every_command_in_place_of_its_windows(
    windows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "case.rankscope"
    assert run(["bundle", str(windows), "--out", str(place)]) == 0
    assert "names replaced" in capsys.readouterr().out and stat.S_IMODE(place.stat().st_mode) == 0o600
    assert is_bundle(place) and place.stat().st_size < SMALL_BYTES
    assert run(["diagnose", str(place)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("FAULT  Rank 3 on host-1: f") and "augment" not in said
    assert run(["report", str(place), "--html", str(tmp_path / "page.html")]) == 1
    assert run(["export", str(place), "--to", "folded", "--out", str(tmp_path / "folded")]) == 0


def test_names_are_kept_where_that_is_asked(windows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bundle", str(windows), "--out", str(tmp_path / "case"), "--keep-names", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["windows"], said["names"], said["bytes"]) == (2, "kept", (tmp_path / "case").stat().st_size)
    assert run(["diagnose", str(tmp_path / "case")]) == 1
    assert "Rank 3 on node-0: augment (train.py:56)" in " ".join(capsys.readouterr().out.split())


def test_the_key_is_its_owners_and_says_what_each_name_stands_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    window = a_private_window()
    write_window(window, tmp_path / "windows")
    place, key = tmp_path / "case", tmp_path / "key.json"
    assert run(["bundle", str(tmp_path / "windows"), "--out", str(place), "--key", str(key), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"] == str(key) and stat.S_IMODE(key.stat().st_mode) == 0o600
    known = json.loads(key.read_text())
    assert known.pop("schema") == "rankscope.bundle-key/1"
    assert known["hosts"]["host-1"] == "dgx-acme-07" and known["jobs"]["job-1"] == "acme-llm"
    assert known["owners"] == {"1001": "4711"} and "172.31.7.9" in known["addresses"].values()
    # every name of a function in the bundle is put back by its parts
    (passed,) = read_bundle(place).windows
    back = known["functions"]
    for there, here in zip(passed.stacks["name"].to_pylist(), window.stacks["name"].to_pylist(), strict=True):
        parts = [re.sub(r"^(f\d+)(_\w+)?$", lambda found: back[found[1]], part) for part in there.split(".")]
        assert ".".join(parts) == here
    # nothing of it is in the bundle, and neither file is given twice
    packed = lzma.decompress(place.read_bytes())
    assert b"SecretNet" in key.read_bytes() and b"SecretNet" not in packed and b"dgx-acme" not in packed
    for wrong in (["--keep-names", "--key", "other"], ["--key", "same"]):
        assert run(["bundle", str(tmp_path / "windows"), "--out", "same", *wrong]) == 64
    assert run(["bundle", str(tmp_path / "windows"), "--out", str(tmp_path / "new"), "--key", str(key)]) == 69
    assert not (tmp_path / "new").exists()


def test_a_baseline_travels_in_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, job in (
        ("before", Job()),
        ("now", builders.Job(scale=dict.fromkeys(range(8), 1.6), start=1_760_000_900.0)),
    ):
        for window in build(job):
            write_window(window, tmp_path / folder)
    now, before, place = (str(tmp_path / name) for name in ("now", "before", "case"))
    code = run(["diagnose", now, "--baseline", before, "--json"])
    there = json.loads(capsys.readouterr().out)
    assert run(["bundle", now, "--baseline", before, "--out", place]) == 0
    capsys.readouterr()
    assert run(["diagnose", place, "--json"]) == code
    here = json.loads(capsys.readouterr().out)
    assert here["status"] == there["status"] and here["baseline"]["windows"] == 1
    assert [one["cause"] for one in here["suspects"]] == [one["cause"] for one in there["suspects"]]


# --- what is no bundle


def repacked(place: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(place.read_bytes()))) as archive:
        files = {member.name: (archive.extractfile(member) or io.BytesIO()).read() for member in archive}
    change(files)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    place.write_bytes(lzma.compress(packed.getvalue()))


def newer(files: dict[str, bytes]) -> None:
    files["bundle.json"] = json.dumps({"schema": "rankscope.bundle/2"}).encode()


def outside(files: dict[str, bytes]) -> None:
    files["../../etc/passwd"] = b"x"


def without_manifest(files: dict[str, bytes]) -> None:
    del files["0/window.json"]


def nameless(files: dict[str, bytes]) -> None:
    del files["bundle.json"]


def more_promised(files: dict[str, bytes]) -> None:
    files["bundle.json"] = json.dumps({"schema": "rankscope.bundle/1", "windows": 99999, "baseline": -3}).encode()


@pytest.mark.parametrize("change", [newer, outside, without_manifest, nameless, more_promised])
def test_a_bundle_that_cannot_be_read_is_65_in_one_line(
    windows: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "case"
    assert run(["bundle", str(windows), "--out", str(place)]) == 0
    repacked(place, change)
    capsys.readouterr()  # how far packing was, where that took long
    assert run(["diagnose", str(place)]) == 65
    err = capsys.readouterr().err
    assert err.startswith("rankscope: ") and err.count("\n") == 1
    assert change is not newer or ("rankscope.bundle/2" in err and "Use a newer rankscope." in err)


@pytest.mark.parametrize("size", [0, 7, 500])
def test_a_bundle_that_is_cut_short_is_65(windows: Path, tmp_path: Path, size: int) -> None:
    place = tmp_path / "case"
    assert run(["bundle", str(windows), "--out", str(place)]) == 0
    place.write_bytes(place.read_bytes()[:size])
    assert run(["diagnose", str(place)]) == 65


def test_a_bundle_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_MOST_UNPACKED", 1 << 20)
    (tmp_path / "case").write_bytes(lzma.compress(bytes(50 << 20)))
    with pytest.raises(BadData, match="more memory than a bundle may"):
        read_bundle(tmp_path / "case")


def test_nor_can_what_unpacks_it(windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["bundle", str(windows), "--out", str(tmp_path / "case")]) == 0
    monkeypatch.setattr(bundle, "_MOST_MEMORY", 1 << 16)
    with pytest.raises(BadData, match="is no bundle: LZMAError"):
        read_bundle(tmp_path / "case")


@pytest.mark.parametrize("kind", ["link", "device", "sparse"])
def test_only_plain_files_are_unpacked(tmp_path: Path, kind: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo("0/window.json")
        if kind == "sparse":  # a terabyte of nothing
            entry.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
        else:
            entry.type, entry.linkname = (tarfile.SYMTYPE, "/etc/passwd") if kind == "link" else (tarfile.CHRTYPE, "")
        archive.addfile(entry)
    (tmp_path / "case").write_bytes(lzma.compress(packed.getvalue()))
    with pytest.raises(BadData, match="does not belong there"):
        read_bundle(tmp_path / "case")


def test_replaced_names_are_of_a_few_plain_kinds() -> None:
    renamed = Renaming().window(a_private_window())
    names = {text for text in renamed.stacks["name"].to_pylist() if not text.startswith(("<", "_", "Linear", "SGD"))}
    assert names and all(re.fullmatch(r"f\d+(_[a-z]+)?(\.f\d+(_[a-z]+)?)*", name) for name in names)


def a_small_bundle(place: Path) -> None:
    place.write_bytes(pack(build(Job(ranks=2)), [], names_kept=True))


@pytest.mark.parametrize("inside", [lzma.compress, gzip.compress, bz2.compress])
def test_what_is_packed_once_more_inside_is_no_bundle(tmp_path: Path, inside: Callable[[bytes], bytes]) -> None:
    a_small_bundle(tmp_path / "case")
    whole = lzma.decompress((tmp_path / "case").read_bytes())
    (tmp_path / "case").write_bytes(lzma.compress(inside(whole)))
    with pytest.raises(BadData, match="is no bundle"):
        read_bundle(tmp_path / "case")


@pytest.mark.parametrize(("limit", "most"), [("_MOST_UNPACKED", 1000), ("_MOST_PACKED", 100), ("_MOST_FILES", 3)])
def test_what_nobody_could_read_is_not_written(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(bundle, limit, most)
    with pytest.raises(UsageError, match="more than one bundle may have"):
        pack(build(Job(ranks=2)), [], names_kept=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python (pid 7) that has ended", r"w1 \(w2 7\) that has ended"),
        ("a socket to [fd00::7]:443", r"a socket to \[fd00:1::1\]:443"),
        ("a socket to [2001:DB8:0:1:2:3:4:5]:443", r"a socket to \[fd00:1::1\]:443"),
        ("a socket to [::ffff:10.1.2.3]:443", r"a socket to \[::ffff:10\.0\.1\.1\]:443"),
        ("ip-10-0-3-7.ec2.internal", r"w1-10-0-1-1\.w2\.w3"),
        ("at 12:30:45 on 0000:3b:00.0", r"at 12:30:45 on 0000:3b:00\.0"),
    ],
)
def test_descriptions_keep_what_the_diagnoser_asks_and_no_address(text: str, expected: str) -> None:
    assert re.fullmatch(expected, Renaming()._text(text))


def test_an_address_is_one_name_whether_a_description_or_a_connection_has_it() -> None:
    renaming = Renaming()
    for peer in ("[fd00::7]:443", "10.1.2.3:443", "[::ffff:10.1.2.4]:443"):
        assert renaming._text(f"a socket to {peer}") == f"a socket to {renaming._endpoint(peer)}"
    near, far = renaming._address("fd00::8"), renaming._address("fd00:0:0:1::8")
    assert near.startswith("fd00:1::") and not far.startswith("fd00:1::"), "of one subnet, and of another"


@pytest.mark.parametrize(
    ("file", "name", "expected"),
    [
        ("<attrs generated init acme.models.secret.TrainConfig>", "__init__", "<attrs generated "),
        ("<torch_package_0>.acme/secret.py", "run", "<torch_package_0>"),
        ("<frozen acme.secret>", "run", "<frozen "),
        ("<ipython-input-3-secret>", "run", "<"),
        ("/home/alice/lib/python3.10/acme_secret/train.py", "Secret.run", "/home/d"),
        ("/home/alice/lib/python3.10/json/decoder.py", "decode", "/lib/python3.10/json/decoder.py"),
        ("<frozen importlib._bootstrap>", "exec_module", "<frozen importlib._bootstrap>"),
        ("<eval_with_key>.3", "forward", "<eval_with_key>.3 forward"),
        ("<string>", "AcmeConfig.check", "<string> f"),
        ("<stdin>", "secret_main", "<stdin> f"),
        ("?", "acme_step", "? f"),
        ("/srv/acme/dataloader.py", "read", "_dataloader.py"),
        ("/srv/acme/secret.py", "<generic parameters of Secret>.__acme_secret__", "/srv/d"),
    ],
)
def test_of_files_that_anybody_can_have_names_stay_and_of_no_others(file: str, name: str, expected: str) -> None:
    renaming = Renaming()
    said = f"{renaming._file(file)} {renaming._function(name, file)}".lower()
    assert expected in said
    assert not any(secret in said for secret in ("acme", "secret", "alice"))


@pytest.mark.parametrize("name", ["PyInit_acme_secret", "PyAcmeModel_forward", "python3acme_secret.so", "acme_kernel"])
def test_of_native_functions_only_pythons_own_keep_their_names(name: str) -> None:
    renaming = Renaming()
    said = renaming._native_function(name) or ""
    assert not any(secret in said.lower() for secret in ("acme", "secret"))
    assert bool(re.match(r"^_?Py|^(lib)?python\d", said)) == bool(re.match(r"^_?Py|^(lib)?python\d", name))
    for own in ("_PyEval_EvalFrameDefault", "libpython3.11.so.1.0", "python3.12", "kernel"):
        assert renaming._native_function(own) == own


def test_all_words_that_tell_what_a_function_does_stay() -> None:
    assert Renaming()._function("Net.forward_backward", "/srv/net.py") == "f1.f2_forward_backward"
