"""The dashboard: its structure, and each of its queries asked of a real Prometheus with the service's own textfiles."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import prometheus
import pytest
from sweep_trees import host as swept_host
from sweep_trees import nic, put
from watched_host import Host, pulse, suspect, verdict

from rankscope.diagnose.face.cli.host import sweep as command
from rankscope.diagnose.service.alarms import Alarm, AlarmKind

CONTENT = json.loads(prometheus.DASHBOARD.read_text())
NODES = ("node-12.rack-3.example.com:9100", "node-13.rack-3.example.com:9100")
EVIL = 'x"} or vector(1) #\\'


def textfiles(folder: Path) -> dict[str, list[Path]]:
    """What the services of two hosts wrote: a job that is slow from its start, one that is slow, one that died; a sick device."""
    files: dict[str, list[Path]] = {}
    for at, node in enumerate(NODES):
        ranks = {"llm": [pulse(2 * at), pulse(2 * at + 1)], EVIL: [pulse(0)]}
        host = Host("llm", EVIL, "gone", ranks=ranks, ledger=lambda *_: {"productive": (90.0, 1), "gc": (3.0, 7)})
        host.jobs["llm"].watch.detector.feed([0.1] * 200)
        host.sees(verdict("fault", suspect()), job="llm", judged_by=("", NODES[0])[at])
        host.jobs[EVIL].raised(Alarm(AlarmKind.SLOWER, EVIL, 0.0, ""))
        host.sees(verdict("fault", suspect(host=EVIL, ranks=[0], lost_percent=40.0)), job=EVIL)
        if at:
            host.looking.alarm(host.jobs["gone"], Alarm(AlarmKind.DEAD, "gone", 0.0, "killed by SIGKILL", (7,)), 0.0)
        del host.jobs["gone"]
        host.written()
        (folder / f"watch-{at}.prom").write_text(host.text)
        files[node] = [folder / f"watch-{at}.prom", _swept(folder / f"sweep-{at}", sick=at == 1)]
    return files


def _swept(folder: Path, sick: bool) -> Path:
    tree, state = swept_host(folder / "root", nic("eth0")), folder / "state"
    state.mkdir(mode=0o700)
    (config := folder / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
    options = command.Options(root=tree, state=state, textfile=folder / "sweep.prom", as_json=True, config=config)
    command.run(replace(options, skip=("disk.full",)))
    if sick:
        put(
            tree,
            {"proc/vmstat": "oom_kill 2\n", "sys/class/net/eth0/operstate": "down", "sys/class/net/eth0/carrier": "0"},
        )
        command.run(options)
        command.run(options)
    return folder / "sweep.prom"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    return textfiles(tmp_path_factory.mktemp("files"))


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\brankscope_[a-z_]+", text))


def test_every_series_that_is_written_has_a_place_on_the_dashboard_and_none_is_asked_that_is_not(
    files: dict[str, list[Path]],
) -> None:
    written = {
        line.split()[2] for paths in files.values() for path in paths
        for line in path.read_text().splitlines() if line.startswith("# TYPE")
    }  # fmt: skip
    variables = {name for one in CONTENT["templating"]["list"] for name in names_in(json.dumps(one.get("query", "")))}
    assert {name for expression in prometheus.queries() for name in names_in(expression)} == written
    assert variables <= written


def test_the_structure_is_what_grafana_reads() -> None:
    panels = CONTENT["panels"]
    assert (
        CONTENT["id"] is None and CONTENT["uid"] and CONTENT["schemaVersion"] >= 36 and CONTENT["title"] == "Rankscope"
    )
    assert len({one["id"] for one in panels}) == len(panels)
    assert len({one["title"] for one in panels}) == len(panels)
    assert [one["title"] for one in panels if one["type"] == "row"] == [
        "Now", "Culprits", "Jobs", "Ranks", "Cost of the observer", "Health of hosts",
    ]  # fmt: skip
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart_x or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= 24 for one in panels)
    source = {"type": "prometheus", "uid": "${datasource}"}
    first, *others = CONTENT["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert all(one["type"] == "query" and one["datasource"] == source and one["query"]["query"] for one in others)
    known = {one["name"] for one in others} | {"__rate_interval", "__range"}
    for panel in prometheus.panels():
        assert (
            panel["description"] and panel["datasource"] == source and panel["type"] in ("stat", "table", "timeseries")
        )
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) >= 1
        for target in panel["targets"]:
            assert target["datasource"] == source and set(re.findall(r"\$(\w+)", target["expr"])) <= known
            assert target["instant"] is not target["range"] and target["instant"] == (panel["type"] != "timeseries")
            assert (target.get("format") == "table") == (panel["type"] == "table")
    assert {name for expression in prometheus.queries() for name in re.findall(r"\$(\w+)", expression)} == known


@pytest.fixture(scope="module")
def scraped(files: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Prometheus]:
    if prometheus.PROMETHEUS is None:
        pytest.skip("prometheus is not installed (scripts/setup --lab fetches it)")
    with prometheus.running(tmp_path_factory.mktemp("prometheus"), files) as one:
        yield one


def test_each_query_has_an_answer(scraped: prometheus.Prometheus) -> None:
    empty = [expression for expression in prometheus.queries() if not scraped.query(expression)]
    assert not empty


def test_the_dashboard_shows_who_costs_what(scraped: prometheus.Prometheus) -> None:
    exists, lost, share = (
        {one["metric"]["training_job"]: one for one in scraped.query(expression)}
        for expression in prometheus.queries("Who costs what")
    )
    assert exists.keys() == {"llm", EVIL, "gone"} and lost.keys() == share.keys() == {"llm", EVIL}
    who = {
        "component": "network",
        "cause": "slow-link",
        "rank": "3",
        "host": "host-3",
        "device": "eth0",
        "status": "fault",
    }
    assert lost["llm"]["metric"] == {"training_job": "llm", **who}
    assert (lost["llm"]["value"][1], share["llm"]["value"][1]) == ("0.036", "0.16")
    assert exists["gone"]["metric"]["status"] == "dead" and exists["gone"]["metric"]["rank"] == "7"
    # one host of the two judged, and tells
    assert len(scraped.query('rankscope_suspect{training_job="llm"}')) == 1


def test_the_numbers_of_the_first_row_count_jobs_and_not_hosts(scraped: prometheus.Prometheus) -> None:
    shown = {title: scraped.query(prometheus.queries(title)[0])[0]["value"][1] for title in (
        "Jobs watched", "Hung", "Dead", "Slow", "Named", "Inefficient", "Critical devices", "Warnings",
    )}  # fmt: skip
    assert shown == {"Jobs watched": "2", "Hung": "0", "Dead": "1", "Slow": "1", "Named": "2", "Inefficient": "0",
                     "Critical devices": "1", "Warnings": "1"}  # fmt: skip


def test_a_sick_device_keeps_its_name_where_the_host_has_dots(scraped: prometheus.Prometheus) -> None:
    rows: list[dict[str, Any]] = scraped.query(prometheus.queries("What is not well")[0])
    bad = {
        (one["metric"]["check"], one["metric"].get("device", ""), one["metric"]["instance"], one["value"][1])
        for one in rows
    }
    assert {("net.link", "eth0", NODES[1], "20"), ("mem.oom", "", NODES[1], "1")} <= bad
    assert not scraped.get("label/exported_instance/values") and not scraped.get("label/exported_job/values")


def test_the_variables_list_jobs_hosts_and_checks(scraped: prometheus.Prometheus) -> None:
    listed = {}
    for one in CONTENT["templating"]["list"][1:]:
        match = re.fullmatch(r"label_values\((.*), (\w+)\)", one["query"]["query"])
        assert match is not None
        listed[one["name"]] = scraped.get(f"label/{match[2]}/values", **{"match[]": match[1]})
    assert set(listed["training_job"]) == {"llm", EVIL} and set(listed["instance"]) == set(NODES)
    assert "net.errors" in listed["check"]
