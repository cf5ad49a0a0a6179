"""Answers from recorded windows: which there are, their verdict, and rows of their tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.diagnose.face.documents.verdicts import judge_all
from rankscope.diagnose.face.mcp import tables
from rankscope.diagnose.face.mcp.envelope import Answer
from rankscope.diagnose.face.mcp.places import WINDOWS_MOST, Places, Refused
from rankscope.diagnose.infer.fleet.sources import find, load_found
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.verdict.as_json import timestamp, to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.sentence import headline
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import MANIFEST, Window, read_manifest, read_window
from rankscope.observer.window.schema import TABLES
from rankscope.probes.base.errors import BadData, UsageError

LISTED_MOST = 5000  # manifests that are read for one list
ROWS_READ_MOST = 4_000_000  # of all tables of a window whose rows are asked for: half a gigabyte
_AUTO = "auto"


def windows(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer which windows may be read, newest first; of one job or host, if the question asks."""
    job, host = question.get("job"), question.get("host")
    found: list[tuple[float, dict[str, Any]]] = []
    unreadable = looked = 0
    for folder in places.all():
        looked += 1
        if looked > LISTED_MOST:
            break
        try:
            manifest, rows = read_manifest(folder / MANIFEST)
        except BadData:
            unreadable += 1
            continue
        if host not in (None, manifest.host) or not (job is None or any(one.startswith(job) for one in manifest.jobs)):
            continue
        row = {
            "window": str(folder), "host": manifest.host, "jobs": list(manifest.jobs), "start": timestamp(manifest.start),
            "seconds": manifest.seconds, "ranks": rows.get("ranks", 0),
        }  # fmt: skip
        found.append((manifest.start, row))
    found.sort(key=lambda one: -one[0])
    shown = [row for _, row in found[: int(question.get("limit", 20))]]
    more = f"; the first {LISTED_MOST} folders were looked at" if looked > LISTED_MOST else ""
    said = f"{len(shown)} of {len(found)} windows, newest first{more}"
    if not found:
        said = f"no window can be read in {', '.join(map(str, places.roots))}"
    return Answer({"windows": shown, "unreadable": unreadable}, (said,))


def diagnose(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer with the verdicts on recorded windows. Raises Refused, BadData, UsageError."""
    folders, refused = _folders(places, question["windows"])
    loaded = load_found(find(folders))
    given = question.get("baseline", ())
    automatic = _AUTO in given
    if automatic and len(given) > 1:
        raise UsageError("the baseline 'auto' chooses by itself: give it alone")
    earlier: Sequence[Window] = ()
    if given and not automatic:
        earlier = [read_window(folder) for folder in _folders(places, given)[0]]
    history = History(places.history) if automatic else None
    found = judge_all(loaded, earlier, question.get("job"), history, ())
    return judged(found, [f"left out: {why}" for why in refused[:3]])


def judged(verdicts: Sequence[Verdict], said: Sequence[str] = ()) -> Answer:
    """Return verdicts as an answer: the document, and the first line of each."""
    return Answer(json.loads(to_json(*verdicts)), (*map(headline, verdicts), *said))


def _folders(places: Places, given: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return the window folders that these paths mean, without repeats, and why others were refused. Raises Refused."""
    found, refused = [], []
    for place in given:
        folders, others = places.folders(place)
        found += [folder for folder in folders if folder not in found]
        refused += others
    if len(found) > WINDOWS_MOST:
        raise Refused(f"{len(found)} windows are too many for an agent's question, {WINDOWS_MOST} are the most")
    return found, refused


def describe(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer which tables a window has, or one of them: number of rows, and columns."""
    folder = _one(places, question["window"])
    rows = read_manifest(folder / MANIFEST)[1]
    names = [question["table"]] if "table" in question else list(TABLES)
    found = [{"table": name, "rows": rows.get(name, 0), "columns": tables.columns_of(name)} for name in names]
    return Answer({"window": str(folder), "tables": found}, (f"{', '.join(names)} of one window",))


def rows(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer with selected rows of a table of a window. Raises BadQuestion, BadData, Refused."""
    folder = _one(places, question["window"])
    counts = read_manifest(folder / MANIFEST)[1]
    if sum(counts.values()) > ROWS_READ_MOST:
        raise BadData(f"the window has {sum(counts.values())} rows, too many for an agent's question")
    name = question["table"]
    found = tables.select(getattr(read_window(folder), name), question)
    said = f"{len(found['rows'])} of {found['matching']} rows of {name}"
    return Answer({"window": str(folder), "table": name, **found}, (said,))


def _one(places: Places, given: str) -> Any:
    """Return the one window folder that a path means. Raises Refused if it is none, or several."""
    folders, _ = places.folders(given)
    if len(folders) > 1:
        raise Refused(f"{clean(given, 200)} holds {len(folders)} windows: name one")
    return folders[0]
