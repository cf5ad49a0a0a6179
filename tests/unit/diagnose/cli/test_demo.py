"""`rankscope demo`: a verdict with what each line means, from the window that is shipped, for anybody on any host."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import builders
import promised
import pyarrow as pa
import pytest
from builders import build

from corpuskit.archive import HOME, SUFFIX, opened
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.face.demo.explained import ANSWER, MEANINGS, explained, parts
from rankscope.diagnose.face.demo.window import CASE, PLACE
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.bundle import read_bundle
from rankscope.observer.window.folder import Window, read_window
from rankscope.observer.window.schema import TABLES

Captured = pytest.CaptureFixture[str]


def test_it_prints_the_verdict_with_what_each_line_means_and_what_to_do_next(capsys: Captured) -> None:
    assert run(["demo"]) == 0
    told = capsys.readouterr().out
    verdict = list(report(diagnose(read_bundle(PLACE).windows)))
    assert [line for line in verdict if line.strip() and line not in told.splitlines()] == []
    assert all(
        len(line) <= 80 for line in told.splitlines() if str(PLACE) not in line and "rankscope diagnose  " not in line
    )
    assert "backup-agent" in verdict[0] + verdict[1] and "backup-agent" in told.partition("What was done")[2]
    assert re.search(r"^next +rankscope doctor", told, re.MULTILINE) and str(PLACE) in told


def test_every_kind_of_line_of_its_verdict_has_a_meaning() -> None:
    """Whoever adds a kind of line to the report says here what it means (diagnose/face/demo/explained.py)."""
    found = [name for name, _ in parts(report(diagnose(read_bundle(PLACE).windows)))]
    assert {ANSWER, "do", "time", "job"} <= set(found)
    assert [name for name in found if name not in MEANINGS] == []


@pytest.mark.parametrize(
    "job", [builders.slow_python(3, 0.08), builders.stopped(5), builders.hogged(3, 0.08), builders.Job()]
)
def test_of_any_verdict_the_lines_stay_as_they_are_and_in_order(job: builders.Job) -> None:
    lines = list(report(diagnose(build(job)), verbose=True))
    shown = list(explained(lines, 80))
    assert [line for line, is_meaning in shown if not is_meaning] == lines
    meanings = [line for line, is_meaning in shown if is_meaning]
    assert len(meanings) == len({*meanings}) > 2 and all(len(line) <= 80 for line in meanings)


def test_its_page_and_its_json_are_those_of_any_verdict(tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "page.html"
    assert run(["demo", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert promised.complaints("verdict", told) == [] and told["status"] == "fault"
    assert "backup-agent" in page.read_text() and stat.S_IMODE(page.stat().st_mode) == 0o600
    assert run(["demo", "--html", str(page)]) == 69
    assert run(["diagnose", str(PLACE), "--json"]) == 1 and json.loads(capsys.readouterr().out) == told


def test_the_window_is_that_of_the_corpus_and_names_nobody() -> None:
    (shipped,) = read_bundle(PLACE).windows
    archive = CASE.partition("/")[0]
    with opened([HOME / f"{archive}{SUFFIX}"]) as corpus:
        (case,) = [one for one in corpus.cases if one.key == CASE]
        (recorded,) = [read_window(place) for place in corpus.windows(case)]
    assert shipped.manifest == recorded.manifest
    assert all(getattr(shipped, name).equals(getattr(recorded, name)) for name in TABLES)
    assert PLACE.stat().st_size < 100_000
    left = [text for text in texts(shipped) if re.search(r"/home|/root|/work|@|\b(10|172|192)\.\d+\.", text)]
    assert left == [] and {"vm", "/opt/rankscope/scripts/labkit/training/job.py"} <= texts(shipped)


def texts(window: Window) -> set[str]:
    found = {window.manifest.host, *window.manifest.jobs, *window.manifest.notes}
    for name in TABLES:
        for column in getattr(window, name).columns:
            values = column.to_pylist()
            flat = [one for cell in values for one in cell or ()] if pa.types.is_list(column.type) else values
            found |= {one for one in flat if isinstance(one, str)}
    return found
