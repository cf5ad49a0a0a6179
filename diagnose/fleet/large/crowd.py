"""All ranks of a large fleet by what tells who is odd: their steps, whether they ran, what they are like. The rest of them is read of few.

The survey's tables become columns here, sorted by the ranks' numbers; no Python loop runs over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.gather import Setting, note_strangers, of_job, setting_of
from rankscope.diagnose.fleet.labels import Labels, floats, ints, labels
from rankscope.diagnose.fleet.large.survey import ROW, Survey
from rankscope.diagnose.fleet.model import Steps
from rankscope.diagnose.fleet.step_matrix import Columns, Hosts, columns_of, filled, possible
from rankscope.diagnose.verdict.note import Note
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.arrays import Bools, Floats, Ints

_SEEN = ("seconds", "own_s", "wait_s")  # of all ranks; the others only of whom everything is read


@dataclass(frozen=True, slots=True)
class Crowd:
    """One row per rank, sorted by number. `called`: the hosts by the names that operators know."""

    setting: Setting
    number: Ints
    hosts: Hosts
    called: tuple[str, ...]
    role: Labels
    running: Bools
    stopped_s: Floats
    last_progress_s: Floats
    in_collective_s: Floats
    ended_s: Floats
    steps: Steps
    columns: Columns
    works: Ints  # a set of 64
    messages: Floats
    moved: Floats
    rate_hz: Floats
    link_from: Labels  # addresses of that connection, whose rate it is
    link_to: Labels
    errors: Floats
    errors_hz: Floats


def crowd_of(seen: Survey, job: str, windows: Sequence[int], notes: list[Note]) -> Crowd:
    """The ranks of a job in these windows. What is to be said of windows and ranks goes into `notes`."""
    manifests = [seen.manifests[number] for number in windows]
    names, host_of_window = np.unique(
        np.array([about.host for about in seen.manifests], dtype=str), return_inverse=True
    )
    begins_s = np.zeros(len(names))
    begins_s[host_of_window.reshape(-1)[list(windows)]] = [about.start for about in manifests]
    mine = np.flatnonzero(np.isin(ints(seen.ranks, WINDOW), windows))
    everyone = seen.ranks.take(pa.array(mine))
    host = host_of_window.reshape(-1)[ints(everyone, WINDOW)]
    observed_on = pa.DictionaryArray.from_arrays(pa.array(host.astype(np.int32)), pa.array(names.tolist(), pa.string()))
    everyone = everyone.append_column("observed_on", observed_on).append_column(ROW, pa.array(mine))
    setting = setting_of(job, manifests, everyone, notes)
    table = of_job(everyone, job)
    number, first = from_windows.present(table, notes)
    note_strangers(everyone, job, number, notes)
    table = table.take(pa.array(first))
    observed, node = labels(table, "observed_on"), labels(table, "node")
    place = {name: at for at, name in enumerate(names.tolist())}
    hosts = Hosts(
        tuple(names.tolist()), np.array([place.get(name, -1) for name in observed.values])[observed.codes], begins_s
    )
    row_of = np.full(seen.ranks.num_rows + 1, -1, dtype=np.int64)  # the last one: of steps of nobody
    row_of[ints(table, ROW)] = np.arange(len(number))
    rows = possible(seen.steps, row_of[ints(seen.steps, ROW)], setting.seconds, notes)
    columns = columns_of(seen.steps, rows, hosts, notes)
    return Crowd(
        setting=setting,
        number=number,
        hosts=hosts,
        called=_called(observed, node),
        role=labels(table, "role"),
        running=_says(labels(table, "state"), "running"),
        stopped_s=np.nan_to_num(floats(table, "stopped_s")),
        last_progress_s=floats(table, "last_progress_s"),
        in_collective_s=np.nan_to_num(floats(table, "in_collective_s")),
        ended_s=floats(table, "ended_s"),
        steps=filled(seen.steps, rows, hosts, columns, _SEEN),
        columns=columns,
        works=pc.fill_null(table["works"], 0).to_numpy().astype(np.uint64).view(np.int64),
        messages=floats(table, "messages"),
        moved=floats(table, "moved"),
        rate_hz=floats(table, "rate_hz"),
        link_from=labels(table, "link_from"),
        link_to=labels(table, "link_to"),
        errors=floats(table, "errors"),
        errors_hz=floats(table, "errors_hz"),
    )


def _says(column: Labels, text: str) -> Bools:
    return np.asarray(column.codes == column.code(text), dtype=bool)


def _called(hosts: Labels, nodes: Labels) -> tuple[str, ...]:
    several = from_windows.several_nodes(hosts, nodes)
    mine, inside = np.unique(hosts.codes), several[hosts.codes]
    names = {hosts.values[code] for code in mine.tolist() if not several[code]}
    names |= {nodes.values[code] for code in np.unique(nodes.codes[inside]).tolist()}
    return tuple(sorted(names - {""}))
