"""Exports, each read with other eyes than those that wrote it: the format's own schema, our reader of timings, or a reader made here."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import stat
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import Job, build
from hostile import EVIL, hostile
from starting import LOAD, starting

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.export.folded import folded
from rankscope.diagnose.face.export.formats import FORMATS, OF_STEPS
from rankscope.diagnose.face.export.perfetto import perfetto
from rankscope.diagnose.face.export.pprof import pprof
from rankscope.diagnose.face.export.speedscope import speedscope
from rankscope.diagnose.face.export.steps_csv import steps_csv
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.observer.window.folder import write_window


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return gather(build(builders.slow_python(3, 0.08, hosts=2)))


def test_folded_stacks_are_lines_of_frames_and_a_number_that_add_up_to_the_window(fleet: Fleet) -> None:
    lines = folded(fleet).decode().splitlines()
    assert all(re.fullmatch(r"[^;]+(;[^;]+)* \d+", line) for line in lines)
    mine = [line for line in lines if line.startswith("rank 3 on node-0;<module> (train.py:1);main (train.py:140);")]
    slow = next(line for line in mine if ";augment (train.py:56) " in line)
    assert int(slow.rpartition(" ")[2]) == pytest.approx(0.12 * 70 * 1e6, rel=0.1)
    whole = sum(int(line.rpartition(" ")[2]) for line in mine)
    assert whole == pytest.approx(float(fleet.steps.seconds[3].sum()) * 1e6, rel=0.05)


def test_speedscope_profiles_follow_the_schema_of_the_format(fleet: Fleet) -> None:
    found = json.loads(speedscope(fleet))
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert set(found) == {"$schema", "name", "exporter", "activeProfileIndex", "shared", "profiles"}
    frames = found["shared"]["frames"]
    assert all(set(frame) <= {"name", "file", "line", "col"} and isinstance(frame["name"], str) for frame in frames)
    assert [profile["name"] for profile in found["profiles"]][3] == "rank 3 on node-0"
    for profile in found["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
        assert profile["type"] == "sampled" and profile["unit"] == "seconds"
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(0 <= frame < len(frames) for stack in profile["samples"] for frame in stack)
        assert profile["endValue"] == pytest.approx(sum(profile["weights"]))


def fields(message: bytes) -> dict[int, list[Any]]:
    """A protocol buffer as numbers of fields with numbers or bytes, after the description of the encoding."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        assert key & 7 in (0, 2), "no other kinds are in profile.proto"
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
        else:
            size = varint()
            assert at + size <= len(message)
            found.setdefault(key >> 3, []).append(message[at : at + size])
            at += size
    return found


def numbers(packed: bytes) -> list[int]:
    return [value for value, _ in _varints(packed)]


def _varints(packed: bytes) -> list[tuple[int, int]]:
    found, value, shift = [], 0, 0
    for at, byte in enumerate(packed):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append((value, at))
            value = shift = 0
    return found


def test_a_pprof_profile_says_the_same_when_it_is_taken_apart(fleet: Fleet) -> None:
    profile = fields(gzip.decompress(pprof(fleet)))
    texts = [text.decode() for text in profile[6]]
    assert texts[0] == "" and len(set(texts)) == len(texts)
    kinds = [{number: texts[value[0]] for number, value in fields(kind).items()} for kind in profile[1]]
    assert kinds == [{1: "executions", 2: "count"}, {1: "time", 2: "nanoseconds"}]
    functions = {fields(each)[1][0]: fields(each) for each in profile[5]}
    locations = {fields(each)[1][0]: fields(fields(each)[4][0]) for each in profile[4]}
    assert set(functions) == set(locations) == set(range(1, len(functions) + 1))
    slow = 0
    for raw in profile[2]:
        sample = fields(raw)
        labels = {texts[fields(label)[1][0]]: texts[fields(label)[2][0]] for label in sample[3]}
        assert set(labels) == {"rank", "host", "role", "kind"}
        names = [texts[functions[locations[place][1][0]][2][0]] for place in numbers(sample[1][0])]
        assert names[-1] == "<module>", "the leaf comes first"
        if labels["rank"] == "3" and names[0] == "augment":
            slow += numbers(sample[2][0])[1]
    assert slow == pytest.approx(0.12 * 70 * 1e9, rel=0.1)
    assert profile[10] == [20_000_000_000]


def test_a_perfetto_trace_has_a_process_for_each_rank_with_its_steps_one_after_another(fleet: Fleet) -> None:
    trace = json.loads(perfetto(fleet))
    events = trace["traceEvents"]
    assert "displayTimeUnit" not in trace, "Perfetto's processor has taken it for the unit of ts and dur"
    assert all(event["ph"] in "MXC" and {"pid", "tid", "name"} <= set(event) for event in events)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names[3] == "rank 3 on node-0" and len(names) == 8
    slices = sorted((event["ts"], event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == 3)
    assert len(slices) == 70
    assert all(
        isinstance(length, int) and start + length <= following
        for (start, length), (following, _) in itertools.pairwise(slices)
    )


def test_the_csv_is_judged_like_the_window_that_it_came_from(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "steps.csv"
    place.write_bytes(steps_csv(fleet))
    assert run(["diagnose", "--steps", str(place), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)["suspects"][0]
    assert first["ranks"] == [3] and first["lost_seconds_per_step"] == pytest.approx(0.08, rel=0.2)


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_names_stay_inside_their_fields(name: str) -> None:
    windows = hostile(Job())
    content = FORMATS[name](gather(windows))
    if name == "pprof":
        content = b"\n".join(fields(gzip.decompress(content))[6])
    text = content.decode("utf-8")
    assert "\x1b" not in text and "\u202e" not in text
    if name == "folded":
        assert all(re.fullmatch(r"[^;]+(;[^;]+)* \d+", line) for line in text.splitlines())
    elif name == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert {len(row) for row in rows} == {8}
        assert not any(cell[:1] in "=+@" for row in rows for cell in row if cell)
    elif name != "pprof":
        assert EVIL[0] in json.dumps(json.loads(text), ensure_ascii=False)


@pytest.fixture
def windows(tmp_path: Path) -> Path:
    for window in build(Job(ranks=2, steps=13)):
        write_window(window, tmp_path / "windows")
    return tmp_path / "windows"


@pytest.mark.parametrize("name", FORMATS)
def test_the_command_writes_each_format_for_its_owner_alone(
    windows: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out"
    assert run(["export", str(windows), "--to", name, "--out", str(place), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["ranks"], said["bytes"]) == (name, 2, place.stat().st_size)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600 and place.stat().st_size > 100
    assert run(["export", str(windows), "--to", name, "--out", str(place)]) == 69
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("name", FORMATS)
def test_what_would_be_empty_is_not_written(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_window(starting([("io", "file lock", "", (LOAD,), 0.99)] * 2), tmp_path / "windows")
    place = tmp_path / "out"
    code = run(["export", str(tmp_path / "windows"), "--to", name, "--out", str(place)])
    assert code == (65 if name in OF_STEPS else 0) and place.exists() == (code == 0)
    assert ("no step was seen" in capsys.readouterr().err) == (code == 65)


def test_an_unknown_format_is_wrong_usage_and_the_known_ones_are_named(
    windows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", str(windows), "--to", "flame", "--out", str(tmp_path / "out")]) == 64
    assert "speedscope, folded, pprof, perfetto, csv" in capsys.readouterr().err
