"""Whatever a target calls itself, its files and its functions: nothing that goes out can steer a terminal, or cannot be encoded."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.diagnose.face.cli.main import _say
from rankscope.diagnose.face.cli.output import print_json, print_table, progress
from rankscope.diagnose.face.cli.report import print_report
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Evidence, Instance, StepSeconds, Suspect, Verdict
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.output import as_json, as_prometheus, as_text, syslog_lines
from rankscope.diagnose.text import clean
from rankscope.observer.window import manifest
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.rows import CounterRow, PatternRow, RankRow, StackRow
from rankscope.observer.window.tables import table_of, write_table
from rankscope.probes.base.text import printable

# Unpaired surrogates are what os.fsdecode makes of bytes that are not UTF-8; the rest are favourites of those who mean harm.
HOSTILE = [
    "\x1b[2J",
    "\x9b31m",
    "\r",
    "\n",
    "\0",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u2028",
    "\ufeff",
    "\udc80",
    "\ud800",
    "\U000e0041",
]
texts = st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(), max_size=12)), max_size=6).map("".join)


def fit(text: str) -> bool:
    """Lines of printable characters, that can be encoded."""
    text.encode("utf-8")
    return all(line.isprintable() for line in text.split("\n"))


@given(texts, st.integers(1, 40))
def test_text_is_printable_short_and_stays_as_it_is(text: str, most: int) -> None:
    for shown in (printable(text, most), clean(text, most)):
        assert fit(shown)
        assert "\n" not in shown
        assert len(shown) <= most
    assert printable(printable(text)) == printable(text)
    assert printable(text) == text or not text.isprintable()


def a_verdict(text: str) -> Verdict:
    suspect = Suspect(
        "storage", "slow-read", text, (Instance(text, text, 7),), (1,), Function(text, text, text, 3), 0.1, 40.0, 0.9, None,
        (Evidence(text, text, text, text, text, 3), Evidence(f"against: {text}", text, 1.0, 2.0, text, 1)), text,
    )  # fmt: skip
    return Verdict(
        "fault", text, (text, text), (0, 1), 1.7e9, 1.7e9 + 20, None, StepSeconds(0.2, 0.3, None), 40.0,
        (suspect, suspect), (Note(NoteCode.OBSERVER, text),), 100, text,
    )  # fmt: skip


@given(texts)
def test_verdicts_are_fit_for_terminals_and_programs(text: str) -> None:
    said = to_json(a_verdict(text))
    assert fit(said)
    assert json.loads(said)["suspects"][0]["function"]["name"] == clean(text)
    for verbose in (False, True):
        out = io.StringIO()
        print_report(a_verdict(text), out, verbose)
        print_report(replace(a_verdict(text), status="unknown", suspects=()), out, verbose)
        assert fit(out.getvalue())
        assert max(map(len, out.getvalue().split("\n"))) <= 80


@given(texts)
def test_sweeps_are_fit_for_terminals_programs_exporters_and_logs(text: str) -> None:
    findings = tuple(Finding(text, state, text, text, text, text, text, text, text) for state in ("critical", "ok"))
    findings += (Finding("a.b", "warning", text, text, 2.5, text, text, text, text),)
    sweep = Sweep(text, 1.7e9, 10.0, "b", 0.1, 0.1, findings, ((text, text),), 0, 3, (), (), (text,))
    assert fit(json.dumps(as_json(sweep), ensure_ascii=False))
    assert all(fit(line) and "\n" not in line for verbose in (False, True) for line in as_text(sweep, verbose))
    assert all(fit(line) and "\n" not in line for _, line in syslog_lines(sweep))
    exposed = as_prometheus(sweep)
    assert fit(exposed)
    for line in exposed.splitlines():
        assert line.startswith(("#", "rankscope_sweep_"))
        assert line.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0


def test_a_label_cannot_add_a_metric() -> None:
    forged = 'x"} 0\nrankscope_sweep_state{check="gpu.lost",device=""} 2\n#'
    finding = Finding("a.b", "ok", forged, "", None, "", "", "", "")
    exposed = as_prometheus(Sweep("h", 1.7e9, 1.0, "b", 0.1, 0.1, (finding,), (), 0, 1, (), ()))
    assert not any(line.startswith('rankscope_sweep_state{check="gpu') for line in exposed.splitlines())


@settings(max_examples=40, deadline=None)
@given(texts)
def test_windows_hold_printable_text_only(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("window")
    words = {name: text for name, kind in RankRow.__annotations__.items() if kind == "str"}
    kinds = {name: kind for name, kind in RankRow.__annotations__.items() if name not in words and "tuple" not in kind}
    numbers = {name: True if kind == "bool" else 1 for name, kind in kinds.items()}
    rank = RankRow(**words, **numbers, addresses=(text,), gpus=(text, text), nics=())  # type: ignore[arg-type]
    words = {name: text for name, kind in PatternRow.__annotations__.items() if "str" in kind}
    numbers = {name: 1 for name in PatternRow.__annotations__ if name not in words}
    rows = {
        "ranks": [rank],
        "patterns": [PatternRow(**words, **numbers)],  # type: ignore[arg-type]
        "stacks": [StackRow(-1, text, text, 1)],
        "counters": [CounterRow("host", text, text, name=text, unit=text)],
    }
    for name, content in rows.items():
        with (folder / f"{name}.parquet").open("wb") as file:
            write_table(table_of(name, content), file)
        cells = pq.read_table(folder / f"{name}.parquet").to_pylist()[0].values()
        found = [one for cell in cells for one in (cell if isinstance(cell, list) else [cell]) if isinstance(one, str)]
        assert found
        assert all(one.isprintable() and one == printable(text) for one in found if one not in ("host", "delta"))
    said = manifest.to_json(Manifest(WINDOW_SCHEMA, text, 1.7e9, 20.0, (text,), "0.1", (text,)), {})
    assert fit(json.dumps(said, ensure_ascii=False))


def test_a_window_of_a_target_whose_names_are_not_unicode_is_written(tmp_path: Path) -> None:
    """Such a name made the observer fail after the window, when all had been gathered."""
    path = b"/data/\xff\xfe.py".decode("utf-8", "surrogateescape")
    with (tmp_path / "stacks.parquet").open("wb") as file:
        write_table(table_of("stacks", [StackRow(-1, "main", path, 1)]), file)
    table: pa.Table = pq.read_table(tmp_path / "stacks.parquet")
    assert table["file"].to_pylist() == ["/data/\\udcff\\udcfe.py"]


@given(texts)
def test_tables_messages_and_json_of_every_command_are_fit(text: str) -> None:
    out = io.StringIO()
    print_table(["A", "B"], [[text, text]], out)
    assert fit(out.getvalue())
    with pytest.MonkeyPatch.context() as patched:
        for stream in ("stdout", "stderr"):
            patched.setattr(f"sys.{stream}", said := io.StringIO())
            print_json({text: [text, {"a": (text,)}]})
            _say(RuntimeError(text), "", 3)
            with progress() as say:
                say(text)
            assert fit(said.getvalue())
