"""What hosts share that are slow alike: racks, switches, file systems, rails; read from files, and told from chance."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Job, build

from rankscope.diagnose.infer.causes.group.shared import with_groups
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.large.topology import Group, expand, parse, read_topology
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Instance, Suspect
from rankscope.diagnose.stats.urn import at_least
from rankscope.probes.base.errors import BadData


def fleet(hosts: int = 16) -> Fleet:
    return gather(build(Job(ranks=hosts, hosts=hosts, steps=6)))


def suspect(of: Fleet, host: str, component: str = "gpu", cause: str = "throttled-thermal", nic: str = "") -> Suspect:
    ranks = tuple(int(n) for n, name in zip(of.ranks.number, of.ranks.host, strict=True) if name == host)
    instances = (Instance(nic),) if nic else ()
    return Suspect(component, cause, host, instances, ranks, None, 0.1, 5.0, 0.8, None, (), "look")


def named(of: Fleet) -> list[str]:
    return sorted(set(of.ranks.host))


def test_hosts_of_one_rack_that_throttle_are_the_rack() -> None:
    of = fleet()
    hosts = named(of)
    racks = [Group("rack", f"r{at}", frozenset(hosts[4 * at : 4 * at + 4])) for at in range(4)]
    lone = suspect(of, hosts[9], "python", "slow-function")
    [one, other] = with_groups(of, [*(suspect(of, host) for host in hosts[4:8]), lone], racks)
    assert (one.scope, one.cause, one.host, len(one.ranks)) == ("group", "throttled-thermal", "", 4)
    assert one.lost_seconds_per_step == pytest.approx(0.4)
    assert "rack r1" in one.action
    assert one.evidence[0].measure == "hosts of rack r1 that are accused"
    assert other is lone


def test_one_bad_host_is_no_bad_rack() -> None:
    of = fleet()
    hosts = named(of)
    racks = [Group("rack", f"r{at}", frozenset(hosts[4 * at : 4 * at + 4])) for at in range(4)]
    alone = [suspect(of, hosts[0])]
    assert with_groups(of, alone, racks) == alone


def test_bad_hosts_that_chance_puts_together_are_no_bad_rack() -> None:
    of = fleet(4)
    hosts = named(of)
    halves = [Group("rack", "left", frozenset(hosts[:2])), Group("rack", "right", frozenset(hosts[2:]))]
    two = [suspect(of, host) for host in hosts[:2]]
    assert with_groups(of, two, halves) == two


def test_a_group_is_only_asked_for_what_it_can_cause() -> None:
    of = fleet()
    hosts = named(of)
    disks = [suspect(of, host, "storage", "slow-read") for host in hosts[:4]]
    of_racks = [Group("rack", f"r{at}", frozenset(hosts[4 * at : 4 * at + 4])) for at in range(4)]
    assert with_groups(of, disks, of_racks) == disks
    servers = [
        Group("filesystem", "/scratch", frozenset(hosts[:4])),
        Group("filesystem", "/home", frozenset(hosts[4:])),
    ]
    [one] = with_groups(of, disks, servers)
    assert (one.scope, one.component) == ("group", "storage")


def test_a_switch_explains_its_hosts_before_the_switch_above_it() -> None:
    of = fleet()
    hosts = named(of)
    lines = [f"SwitchName=leaf1 Nodes={','.join(hosts[:4])}", f"SwitchName=leaf2 Nodes={','.join(hosts[4:8])}"]
    groups = parse("\n".join([*lines, "SwitchName=spine Switches=leaf[1-2]"]))
    [one] = with_groups(of, [suspect(of, host, "network", "slow-link") for host in hosts[:4]], groups)
    assert "switch leaf1" in one.action


def test_the_same_adapter_of_all_hosts_is_the_rail() -> None:
    of = fleet()
    ranks = replace(of.ranks, nics=(("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),) * len(of.ranks))
    of = replace(of, ranks=ranks)
    bad = [suspect(of, host, "nic", "slow", nic="mlx5_2") for host in named(of)[:12]]
    [one] = with_groups(of, bad, ())
    assert (one.scope, one.instance) == ("group", "mlx5_2")
    assert "rail mlx5_2" in one.action


def test_where_nobody_knows_adapters_there_are_no_rails() -> None:
    of = fleet()
    of = replace(of, ranks=replace(of.ranks, nics=()))
    some = [suspect(of, host, "network", "slow-link", nic="eth0") for host in named(of)]
    assert with_groups(of, some, ()) == some


def test_hosts_side_by_side_that_are_slow_alike_are_proposed_as_a_group() -> None:
    of = fleet(80)
    hosts = [f"node-{at}" for at in range(80)]
    apart = suspect(of, hosts[30], "network", "slow-link")
    beside = [suspect(of, host, "network", "slow-link") for host in hosts[8:11]]
    one, other = with_groups(of, [*beside, apart], ())
    assert (one.scope, len(one.ranks), other) == ("group", 3, apart)
    assert "node-8 to node-10" in one.action
    [hot] = with_groups(of, [suspect(of, host) for host in hosts[8:11]], ())
    assert "cooling and power" in hot.action
    # BUT two may be the ends of one link, others have nothing in common, and what functions do is nobody's rack
    assert with_groups(of, [*beside[:2], apart], ()) == [*beside[:2], apart]
    strewn = [suspect(of, hosts[at], "network", "slow-link") for at in (3, 9, 27)]
    assert with_groups(of, strewn, ()) == strewn
    slow = [suspect(of, host, "python", "slow-function") for host in hosts[8:11]]
    assert with_groups(of, slow, ()) == slow
    # AND where switches are known nothing is guessed
    known = replace(of, groups=(Group("switch", "leaf1", frozenset(hosts[:20])),))
    assert with_groups(known, beside, known.groups) == beside


def test_without_groups_suspects_stay_as_they_are() -> None:
    of = fleet()
    some = [suspect(of, host) for host in named(of)]
    assert with_groups(of, some, ()) == some


# ---- files ------------------------------------------------------------------------------------------------------------


def test_a_table_names_groups_of_each_kind() -> None:
    groups = parse("# ours\nhost, rack,filesystem\na,r1,/s\nb,r1,/s\nc,r2,\n")
    assert groups == (
        Group("filesystem", "/s", frozenset("ab")),
        Group("rack", "r1", frozenset("ab")),
        Group("rack", "r2", frozenset("c")),
    )


def test_slurms_file_is_read_with_switches_of_switches() -> None:
    text = "# Slurm\nSwitchName=s0 Nodes=n[01-03,7]  # first\nSwitchName=s1 Nodes=x\nSwitchName=top Switches=s[0-1] LinkSpeed=100\n"
    hosts = {group.name: group.hosts for group in parse(text)}
    assert hosts["s0"] == {"n01", "n02", "n03", "n7"}
    assert hosts["top"] == {"n01", "n02", "n03", "n7", "x"}


@pytest.mark.parametrize("text", ["", "host\na", "a,b\n1,2", "SwitchName=x", "SwitchName=x Nodes=n[1-", "SwitchName=x Nodes=n[a-b]",
                                  "SwitchName=x Switches=y\nSwitchName=y Switches=x Nodes=a", "SwitchName=x Nodes=n[1-99999999]",
                                  "host,rack\n,r1", "host,rack\n" + 140_000 * "a"])  # fmt: skip
def test_what_is_no_topology_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(BadData, match="is no topology") as caught:
        read_topology(tmp_path / "file")
    assert "\n" not in str(caught.value)


def test_long_chains_of_switches_are_read_at_once_and_never_fill_the_memory() -> None:
    """Each stands above the next; the hosts below all of them are kept once."""
    chain = [f"SwitchName=s{at} Switches=s{at + 1}" for at in range(20_000)]
    groups = parse("\n".join([*chain, "SwitchName=s20000 Nodes=n[1-1000]"]))
    assert len(groups) == 20_001 and len({id(group.hosts) for group in groups}) == 1
    with pytest.raises(ValueError, match="absurdly many hosts"):
        parse("\n".join(["SwitchName=s50 Nodes=n[1-500000]", *[f"{chain[at]} Nodes=m{at}" for at in range(50)]]))


BOMBS = {
    "many lines": "\n".join(f"SwitchName=s{at} Nodes=n[1-1999999]" for at in range(2_000)),
    "long names": f"SwitchName=s Nodes={'n' * 100_000}[1-1999999]",
    "many zeros": f"SwitchName=s Nodes=n[{'0' * 4_000}1-1999999]",
    "many switches": "SwitchName=s[1-1999999] Nodes=n[1-1999999]",
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_short_file_that_stands_for_billions_of_hosts_is_one_line_at_once(what: str) -> None:
    """In little memory, and in little time: it says so itself, as a child that may take no more."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30));"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20));"
        "from rankscope.diagnose.infer.fleet.large.topology import parse\n"
        "try: parse(sys.stdin.read())\nexcept ValueError as error: print('one line:', error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=BOMBS[what], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("one line:"), done.stderr[-300:]
    assert len(done.stdout) < 300


def test_lists_of_hosts_are_expanded_with_their_zeros() -> None:
    assert list(expand("a[08-10],b,c[1]d")) == ["a08", "a09", "a10", "b", "c1d"]


def test_the_chance_of_a_group_is_that_of_an_urn() -> None:
    from scipy.stats import hypergeom

    for found, among, drawn, of_all in [(2, 2, 2, 4), (4, 4, 5, 16), (0, 3, 2, 9), (20, 32, 40, 12_500), (3, 3, 8, 9)]:
        assert at_least(found, among, drawn, of_all) == pytest.approx(hypergeom.sf(found - 1, of_all, among, drawn))


def test_hosts_that_were_looked_at_and_not_read_are_innocent_too() -> None:
    """Of a large fleet few hosts are here: a rack of two would be chance among four, and is none among a hundred."""
    of = fleet(4)
    hosts = named(of)
    racks = [Group("rack", f"r{at}", frozenset(hosts[2 * at : 2 * at + 2])) for at in range(2)]
    two = [suspect(of, host) for host in hosts[:2]]
    assert with_groups(of, two, racks) == two
    everyone = frozenset([*hosts, *(f"other-{at}" for at in range(96))])
    [one] = with_groups(replace(of, looked_at_hosts=everyone), two, racks)
    assert one.scope == "group"


def test_labels_of_nodes_say_which_hosts_share_a_rack_or_a_switch() -> None:
    def node(name: str, **labels: str) -> dict[str, object]:
        return {"metadata": {"name": name, "labels": labels}}

    leaf, domain = "network.topology.nvidia.com/leaf", "accelerator.topograph.run/domain"
    nodes = [
        node("n0", **{leaf: "s1", "kubernetes.io/hostname": "host-0", "example.com/rack": "r1"}),
        node("n1", **{leaf: "s1", domain: "r1", "app": "switch"}),
        node("n2", **{"topology.k8s.aws/network-node-layer-3": "nn-9", "example.com/filesystem": "/scratch"}),
        node("n3"),
    ]
    found = {(group.kind, group.name): set(group.hosts) for group in parse(json.dumps({"items": nodes}))}
    assert found == {
        ("rack", "r1"): {"host-0", "n1"},
        ("switch", "s1"): {"host-0", "n1"},
        ("switch", "nn-9"): {"n2"},
        ("filesystem", "/scratch"): {"n2"},
    }


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"items": 3}', '{"items": [3]}', '{"items": []}', '{"items": [{"metadata": {}}]}']
)
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)
