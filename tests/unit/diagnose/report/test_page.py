"""The report for a browser: what is in it, whom it shows, and that nothing a job calls itself can do anything in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import builders
import numpy as np
import pytest
from builders import Job, build
from hostile import hostile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reported import of
from spoilt import NUMBER, spoilt

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.report import report as report_in_text
from rankscope.diagnose.face.export.formats import FORMATS
from rankscope.diagnose.face.export.stacks import samples_of
from rankscope.diagnose.face.report.build import report_of
from rankscope.diagnose.face.report.content import Standing
from rankscope.diagnose.face.report.render import render, straight
from rankscope.diagnose.face.report.sections.counters import amount_of, meaning_of
from rankscope.diagnose.face.report.sections.standing import LINES_MOST, standing_of
from rankscope.diagnose.infer.causes.causes import TABLE
from rankscope.diagnose.infer.causes.registry import Cause, sentence
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.still.merged_stacks import merged_stacks
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import Instance, Suspect
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.sentence import accusation_of, sentence_of
from rankscope.diagnose.infer.verdict.stack_tree import StackNode
from rankscope.observer.window.counter_names import COUNTER_NAMES
from rankscope.observer.window.folder import write_window

CASES = {
    "healthy": Job(),
    "python": builders.slow_python(3, 0.08, hosts=2),
    "hog": builders.hogged(3, 0.08, onset=0.4),
    "link": builders.slow_link(1, 0.1),
    "stopped": builders.stopped(5),
    "imbalance": Job(scale={2: 1.6}),
    "unknown": Job(steps=3),
    "alone": Job(ranks=1),
}


class Parsed(HTMLParser):
    """Elements and text of a page, the text of scripts and styles apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self.said: list[str] = []
        self._in = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag if tag in self.inline else ""

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        (self.inline[self._in] if self._in else self.said).append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.inline["script"][0])


def test_the_sentence_on_top_says_who_what_and_what_it_costs() -> None:
    page = of(build(builders.slow_python(3, 0.08, hosts=2, noise=0.0, spread=0.0, stalls=0.0)))
    assert page.headline.sentence == (
        "Rank 3 on node-0: augment (train.py:56) takes longer there than on its peers, which costs 0.080 s of each 0.320 s step (25 %)."
    )
    assert page.headline.price == "That is as much as 2 of 8 ranks standing idle all the time: 25 % of the job."


def test_a_function_that_sleeps_is_said_to_sleep_on_the_page_and_on_the_terminal() -> None:
    verdict = diagnose(build(builders.slow_python(3, 0.08, builders.ASLEEP, hosts=2)))
    assert sentence_of(verdict).startswith("Rank 3 on node-0: collate (train.py:74) sleeps, which costs 0.0")
    said = " ".join(" ".join(report_in_text(verdict)).split())
    assert "state in it: asleep, by a call like time.sleep" in said and "See why collate (" in said


def said(suspect: Suspect, **other: Any) -> str:
    """The sentence of a suspect, with another cause or scope perhaps."""
    one = replace(suspect, **other)
    return accusation_of(replace(one, says=sentence(one.component, one.cause, one.scope)), ())


def test_many_ranks_are_not_told_as_one() -> None:
    one = Suspect("cpu", "quota", "", (), (0, 1, 2), None, 0.1, 25.0, 0.9, None, (), "")
    assert said(one).startswith("Ranks 0-2: a CPU quota holds them back, which costs ")
    held = replace(one, scope="all")
    assert said(held).startswith("All 3 ranks: a CPU quota holds them back, ")
    slower = replace(
        held, component="workload", cause="slow-everywhere", function=Function("python", "load", "/a/b.py", 3)
    )
    assert said(slower).startswith("All ranks became slower, in load (b.py:3), which costs ")
    moves = replace(slower, component="python", cause="blocking-call")
    assert said(moves).startswith("Now on one rank, now on another, load (b.py:3) sleeps, which costs ")
    uneven = replace(moves, component="workload", cause="data-imbalance")
    assert said(uneven).startswith("The work is uneven: now one rank has more, now another, which costs ")


def test_who_uses_a_gpu_as_well_is_named_first() -> None:
    user = (Instance("gpu6", "ray-worker", 29947),)
    shared = Suspect("gpu", "contended", "node-1", user, (6,), None, 0.1, 25.0, 0.9, None, (), "")
    assert said(shared).startswith("Rank 6 on node-1: ray-worker (29947) uses gpu6 as well, which costs ")


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_verdict_becomes_a_page_that_reads_without_a_script(case: str) -> None:
    windows = build(CASES[case])
    report = of(windows)
    parsed = Parsed(render(report))
    said = " ".join(" ".join(parsed.said).split())
    assert report.headline.sentence in said
    assert (report.standing != ()) == (report.headline.status == "hang")
    assert all(proof.measure in said for accused in report.accused for proof in accused.proofs)
    assert all(note.text[:60] in said for note in diagnose(windows).notes if report.headline.status != "unknown")


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(row.key))
def test_every_cause_has_a_sentence_with_and_without_a_function(row: Cause) -> None:
    suspect = Suspect(
        row.component,
        row.cause,
        "node-1",
        (),
        (4,),
        None,
        0.1,
        25.0,
        0.9,
        None,
        (),
        "",
        row.scope,
        says=sentence(*row.key),
    )
    bare = accusation_of(suspect, ())
    named = accusation_of(replace(suspect, function=Function("python", "load", "/a/b.py", 3)), (4,))
    if not sentence(*row.key).startswith("^"):
        assert bare.startswith("Rank 4 on node-1: ") and named.startswith("Rank 4? on node-1: ")
    assert not re.search(r"[{}|]| ,|  ", bare + named)
    assert bare.endswith(", which costs 0.100 s of each 0.400 s step (25 %).")


def test_the_budget_is_shown_as_a_table_that_adds_up_and_as_bars_of_the_job_and_of_suspects() -> None:
    shown = of(build(CASES["python"])).spending
    assert shown is not None and (shown.ranks, shown.of_window) == (8, False)
    assert sum(part.percent for part in shown.parts) == pytest.approx(100, abs=0.1)
    assert [bar.who for bar in shown.bars] == ["all 8 ranks", "rank 3"]
    for bar in shown.bars:
        assert sum(width for _, _, _, width in bar.pieces) == pytest.approx(1000, abs=0.2)
        ends = [begin + width for _, _, begin, width in bar.pieces]
        assert all(
            begin == pytest.approx(end, abs=0.02) for (_, _, begin, _), end in zip(bar.pieces[1:], ends, strict=False)
        )
    computing = next(part for part in shown.parts if part.kind == "python")
    assert computing.items[0].startswith("train.py:56 augment: 0.0")
    style = Parsed(render(of(build(CASES["python"])))).inline["style"][0]
    assert all(f".spent-{kind.value}" in style for kind in Kind), "each kind has a colour"


def test_the_heat_map_shows_the_culprit_in_its_function_and_counts_no_waiting_as_lost() -> None:
    heat = of(build(CASES["python"])).heat
    assert heat is not None
    names = [function.name for function in heat.functions]
    worst = np.unravel_index(np.nanargmax(heat.above_s), heat.above_s.shape)
    assert (heat.ranks[worst[0]].number, names[worst[1]]) == (3, "augment")
    assert [function.name for function in heat.functions if function.accused] == ["augment"]
    assert [rank.number for rank in heat.ranks if rank.accused] == [3]
    assert np.isnan(heat.above_s[:, names.index("allreduce")]).all()
    assert 0.06 < heat.above_s[worst] < 0.1


def test_the_flame_graph_shows_where_the_culprit_takes_more_than_its_peers() -> None:
    flames = of(build(CASES["python"])).flames
    assert flames is not None and flames.peers == 7
    assert flames.more[0].name == "augment" and 0.06 < flames.more[0].above_s < 0.1
    for number, frame in enumerate(flames.frames):
        if frame.parent >= 0:
            caller = flames.frames[frame.parent]
            assert frame.parent < number and frame.depth == caller.depth + 1
            assert caller.offset_s - 1e-9 <= frame.offset_s
            assert frame.offset_s + frame.seconds <= caller.offset_s + caller.seconds + 1e-9


def test_the_timeline_marks_the_step_at_which_it_began() -> None:
    timeline = of(build(CASES["hog"])).timeline
    assert timeline is not None and timeline.tracks[0].who == "rank 3 on node-0"
    assert abs(timeline.onset - 28) <= 2  # of 70 steps, 0.4 of them before
    before, after = (np.nanmean(part) for part in np.split(timeline.tracks[0].parts_s[2], [timeline.onset]))
    assert after > 3 * before


def test_a_long_window_is_drawn_in_bundles_of_which_the_longest_step_is_shown() -> None:
    windows = build(Job(steps=1000, window_s=250.0))
    fleet = gather(windows)
    timeline = of(windows).timeline
    assert timeline is not None and timeline.bundled == 3
    assert timeline.tracks[0].parts_s.shape == (6, 334)
    culprit = int(timeline.tracks[0].who.split()[1])
    longest = np.append(fleet.steps.seconds[culprit], [0.0, 0.0]).reshape(-1, 3).max(axis=1)
    assert timeline.tracks[0].total_s == pytest.approx(longest)


def test_kernels_of_a_gpu_stand_beside_the_stacks_and_a_stopped_rank_has_its_width() -> None:
    kernels = builders.Work("gpu", "kernels", 0, 0, file="", frames=())
    (window,) = build(Job(ranks=4, extra={0: [(kernels, 0.1)]}))
    rows = window.patterns.to_pylist()
    without = [{**row, "stack": -1 if row["kind"] == "gpu" else row["stack"], "per_step_s": 0.0} for row in rows]
    flames = of([builders.columns(window, "patterns", without)]).flames
    assert flames is not None and flames.unit == "of the window"
    (beside,) = [frame for frame in flames.frames if frame.kind == "gpu"]
    assert (beside.parent, beside.depth, beside.place) == (-1, 0, "") and beside.seconds > 5


def test_gpu_functions_stand_beside_those_of_python_in_place_of_their_sum() -> None:
    kernels = builders.Work("gpu", "kernels", 0, 0, file="", frames=())
    functions = [("gemm<float>", "forward", 18, 0.75), ("adam", "step", 40, 0.25)]
    windows = build(Job(ranks=4, extra={rank: [(kernels, 0.1)] for rank in range(4)}))
    heat = of([builders.with_gpu_functions(window, functions) for window in windows]).heat
    assert heat is not None
    shown = {function.name: (function.place, function.kind) for function in heat.functions}
    assert shown["gemm<float> in forward"] == ("train.py:18", "gpu") and shown["adam in step"] == ("train.py:40", "gpu")
    assert "kernels" not in shown and "augment" in shown
    of_sum = of(windows).heat
    assert of_sum is not None and "kernels" in [function.name for function in of_sum.functions]


def test_counters_that_convict_come_first_and_say_what_they_count() -> None:
    lines = of(build(builders.throttled(3, 0.08))).counters
    assert lines[0].name == "cpu.throttled_s" and lines[0].odd
    assert lines[0].meaning == "time the rank's cgroup was throttled by its CPU quota"


@pytest.mark.parametrize("name", COUNTER_NAMES)
def test_what_a_counter_means_is_told_without_what_is_for_its_readers(name: str) -> None:
    meaning = meaning_of(name.replace("<reason>", "hw_thermal").replace("<number>", "79"))
    assert not re.search(r"\bscope\b|likewise|\.py|^gauge: |^instance", meaning)


@pytest.mark.parametrize(("value", "unit", "shown"), [
    (46_780_000, "bytes", "46.8 MB"), (1.25e9, "bytes/s", "1.25 GB/s"), (9.29e8, "Hz", "929 MHz"), (0.7829, "share", "78.3 %"),
    (84, "celsius", "84 °C"), (1643, "events", "1,643 events"),
])  # fmt: skip
def test_counters_have_units_as_people_say_them(value: float, unit: str, shown: str) -> None:
    assert amount_of(value, unit) == shown


def test_a_hang_is_one_tree_of_all_ranks() -> None:
    lines = of(build(CASES["stopped"])).standing
    assert lines[0].ranks == "ranks 0-7" and lines[0].level == 0
    parted = [(line.ranks, line.level) for line in lines if line.ranks]
    assert parted == [("ranks 0-7", 0), ("rank 5", 1), ("ranks 0-4, 6, 7", 1)], "those who are few come first"
    assert [line.but for line in lines if line.ranks] == ["", "", "rank 5"]
    assert [line.waits_for for line in lines if line.waits_for] == ["stopped", "waits for other ranks (allreduce)"]


def test_ten_thousand_ranks_in_as_many_places_are_a_tree_of_some_lines() -> None:
    """What a hostile job can make: no line is longer than a screen, and what is left out is told."""
    nodes = tuple(StackNode(f"f{rank}", "/srv/a.py", rank, (rank,), (), ()) for rank in range(10_000))
    lines = standing_of(StackNode("", "", 0, tuple(range(10_000)), (10_000, 10_001), nodes))
    assert lines[0] == Standing(0, "ranks 10000, 10001", "", "", "", "in none of these windows")
    assert len(lines) == LINES_MOST + 1 and lines[-1].ranks == "ranks 399-9999"
    assert lines[-1].waits_for == "in 9601 more places (--json has all)"
    odd = StackNode("f", "/srv/a.py", 1, tuple(range(0, 10_000, 2)), (), ())
    assert all(len(line.ranks) < 100 for line in standing_of(replace(odd, name="", children=(odd,))))


def test_stacks_deeper_than_python_calls_itself_are_one_short_chain() -> None:
    frames = tuple(builders.StackFrame(f"call_{depth}", "/srv/job/deep.py", depth) for depth in range(3000))
    deep = builders.Work("python", "bottom", 0, 56, frames=frames)
    windows = build(Job(ranks=2, extra={0: [(deep, 0.2)], 1: [(deep, 0.2)]}))
    lines = standing_of(merged_stacks(gather(windows)))
    assert lines[-1].name == "bottom" and len(lines) < 20
    assert "… 193 frames …" in [line.name for line in lines]
    assert len(render(of(windows))) < 3_000_000


def test_who_was_looked_at_and_not_accused_is_told_with_a_reason() -> None:
    told = of(build(CASES["python"])).considered
    assert told and all(each.why for each in told)
    assert not any(each.what.startswith("rank 3 ") for each in told)
    assert "less than the" in told[0].why


def test_ten_thousand_ranks_make_a_page_of_less_than_three_megabytes_in_seconds() -> None:
    windows = build(builders.slow_python(4711, 0.08, ranks=10_000, hosts=4, steps=8, window_s=3.0))
    fleet, verdict = gather(windows), diagnose(windows)
    began = time.process_time()
    page = render(report_of(fleet, verdict))
    assert time.process_time() - began < 20
    assert len(page.encode()) < 3_000_000
    heat = Parsed(page).data["heat"]
    assert len(heat["ranks"]) == 10_000 and [rank[0] for rank in heat["ranks"] if rank[3]] == [4711]


# --- hostile names

# What our own template writes.
ELEMENTS = {
    "html", "head", "meta", "title", "link", "style", "body", "header", "p", "h1", "h2", "h3", "b", "i", "ul", "li", "main", "section",
    "table", "thead", "tbody", "tr", "th", "td", "caption", "span", "code", "kbd", "small", "form", "fieldset", "legend", "label",
    "input", "div", "noscript", "figure", "figcaption", "svg", "path", "line", "rect", "footer", "script"
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "rel", "href", "class", "id", "aria-labelledby", "aria-label", "aria-hidden",
    "role", "type", "value", "checked", "scope", "tabindex", "viewbox", "preserveaspectratio", "data-track", "d", "x1", "x2", "y1",
    "y2", "x", "y", "width", "height"
}  # fmt: skip


@pytest.mark.parametrize("case", [Job(), builders.stopped(3)])
def test_no_name_of_a_job_becomes_markup_or_code(case: Job) -> None:
    page = render(of(hostile(case)))
    usual = Parsed(render(of(build(builders.slow_python(3, 0.08)))))
    parsed = Parsed(page)
    assert {tag for tag, _ in parsed.elements} <= ELEMENTS
    assert [tag for tag, _ in parsed.elements].count("script") == 2
    assert [tag for tag, _ in parsed.elements].count("style") == 1
    assert {name for _, attributes in parsed.elements for name in attributes} <= ATTRIBUTES
    assert not any(name.startswith("on") or name == "style" for _, attributes in parsed.elements for name in attributes)
    assert parsed.inline["style"] == usual.inline["style"] and parsed.inline["script"][1:] == usual.inline["script"][1:]
    assert "<script>document" in " ".join(parsed.said), "the name itself is shown, as text"
    assert "\x1b" not in page and "\x00" not in page and "\u202e" not in page


def test_what_is_written_from_right_to_left_turns_nothing_beside_it_round() -> None:
    mark = "\N{LEFT-TO-RIGHT MARK}"
    assert straight("in \u05e9\u05dc: 0.1 s, \u0627 12") == f"in \u05e9\u05dc{mark}: 0.1 s, \u0627{mark} 12"
    assert straight("\u05e9_\u05dc\u05dd 3") == f"\u05e9_\u05dc\u05dd{mark} 3", "a name stays one"
    assert straight("augment (train.py:56)") == "augment (train.py:56)"
    assert f"\u05e9\u05dc{mark}, 8 ranks" in render(of(build(Job(name="\u05e9\u05dc"))))


def test_the_policy_allows_the_one_style_and_the_one_script_and_no_request() -> None:
    parsed = Parsed(render(of(build(CASES["python"]))))
    policy = next(attributes["content"] for tag, attributes in parsed.elements if attributes.get("http-equiv"))
    assert policy is not None
    for name, text in (("script-src", parsed.inline["script"][1]), ("style-src", "".join(parsed.inline["style"]))):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    for tag, attributes in parsed.elements:
        for name in ("src", "href", "action", "srcset"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)


# --- the command


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "faulty")
    return tmp_path / "faulty"


@pytest.mark.parametrize("command", ["report", "diagnose"])
def test_the_page_is_written_for_its_owner_alone(
    faulty: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "page.html"
    assert run([command, str(faulty), "--html", str(place)]) == 1
    assert capsys.readouterr().out.startswith("FAULT  Rank 3 on node-0")
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert "Rank 3 on node-0" in place.read_text()
    assert sorted(tmp_path.iterdir()) == [faulty, place]


@pytest.mark.parametrize("there", ["file", "link", "dangling link", "folder"])
def test_what_is_there_is_never_written_over_or_followed(
    faulty: Path, tmp_path: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, other = tmp_path / "page.html", tmp_path / "other"
    if there == "file":
        place.write_text("mine")
    elif there == "folder":
        place.mkdir()
    else:
        place.symlink_to(other)
        if there == "link":
            other.write_text("mine")
    assert run(["report", str(faulty), "--html", str(place)]) == 69
    assert "is there already" in capsys.readouterr().err
    if there in ("file", "link"):
        assert place.read_text() == "mine"
    assert not (there == "dangling link" and other.exists())


def test_a_place_that_cannot_be_written_is_69_in_one_line(
    faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(faulty), "--html", str(tmp_path / "nowhere/page.html")]) == 69
    err = capsys.readouterr().err
    assert err.startswith("rankscope: ") and err.count("\n") == 1


def test_timings_of_others_become_a_page_too(tmp_path: Path) -> None:
    lines = ["rank,step,function,kind,seconds"]
    for step in range(40):
        for rank in range(4):
            work = 0.2 if rank == 2 else 0.1
            lines += [f"{rank},{step},compute,python,{work}", f"{rank},{step},allreduce,collective,{0.25 - work}"]
    timings, place = tmp_path / "timings.csv", tmp_path / "page.html"
    timings.write_text("\n".join(lines) + "\n")
    assert run(["diagnose", "--steps", str(timings), "--html", str(place)]) == 1
    assert "Rank 2: " in place.read_text()


def test_several_jobs_are_named_on_the_page_of_the_worst(tmp_path: Path) -> None:
    for name, job in (("job-a", builders.slow_python(3, 0.08)), ("job-b", Job())):
        for window in build(replace(job, name=name)):
            write_window(window, tmp_path / "both")
    place = tmp_path / "page.html"
    assert run(["report", str(tmp_path / "both"), "--html", str(place)]) == 1
    assert "HEALTHY  Nobody stands out: 8 ranks" in place.read_text() and "Rank 3 on node-0" in place.read_text()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_numbers_in_a_window_end_in_a_page_and_in_every_export(data: st.DataObject) -> None:
    job = data.draw(
        st.sampled_from([builders.slow_python(0, 0.1, ranks=3, steps=13), builders.stopped(1, ranks=2, steps=13)])
    )
    window = spoilt(data, job)
    (counters,) = [builders.build(builders.throttled(0, 0.1, ranks=3, steps=2))[0].counters.to_pylist()]
    for row in counters:
        row["value"], row["limit"] = data.draw(NUMBER), data.draw(NUMBER)
    window = builders.columns(window, "counters", counters)
    page = Parsed(render(of([window])))
    assert page.data.keys() == {"heat", "flame", "steps"}
    assert "nan" not in " ".join(value or "" for tag, attributes in page.elements if tag in ("path", "rect", "line", "svg")
                                 for value in attributes.values()).lower()  # fmt: skip
    fleet = gather([window])
    for name, write in FORMATS.items():
        assert write(fleet) or (name == "folded" and not list(samples_of(fleet)))
