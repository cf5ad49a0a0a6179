"""Real connections in real network namespaces: what the kernel accounts for is what was sent, and what held it back."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pace import pace_s

from rankscope.probes.host.namespaces import in_namespace, namespace_inode, node_name
from rankscope.probes.host.procfs import ROOT, socket_inodes
from rankscope.probes.network import netlink
from rankscope.probes.network.flows import FlowTracker, connections_of, tcp_sockets
from rankscope.probes.network.interfaces import interface_deltas, read_interfaces
from rankscope.probes.network.qdisc import qdisc_deltas, read_qdiscs

pytestmark = pytest.mark.beside(ranks=False)

RATE_HZ = 2_500_000  # bytes per second: tbf rate 20mbit
SENDER, RECEIVER = "198.51.100.1", "198.51.100.2"

# Both peers obey lines on stdin, so that a test decides what is opened and sent when.
SEND = """
import socket, sys
print("done", flush=True)
channels = {}
for line in sys.stdin:
    word, name, size = line.split()
    if word == "open":
        channels[name] = socket.create_connection((%r, 7001))
    elif word == "send":
        channels[name].sendall(bytes(int(size)))
        assert channels[name].recv(1) == b"!"
    else:
        channels.pop(name).close()
    print("done", flush=True)
"""
RECEIVE = """
import socket, threading, sys
def serve(channel):
    got = 0
    while True:
        data = channel.recv(1 << 16)
        if not data:
            return
        got += len(data)
        if got >= 1_000_003:
            got -= 1_000_003
            channel.sendall(b"!")
server = socket.create_server(("0.0.0.0", 7001))
print("done", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
MESSAGE = 1_000_003


@dataclass
class Pair:
    """Two namespaces joined by one link, a process in each."""

    sender: subprocess.Popen[str]
    receiver: subprocess.Popen[str]

    def do(self, word: str, name: str, size: int = 0) -> None:
        assert self.sender.stdin is not None and self.sender.stdout is not None
        self.sender.stdin.write(f"{word} {name} {size}\n")
        self.sender.stdin.flush()
        assert self.sender.stdout.readline() == "done\n"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = f"rsk{os.getpid()}a", f"rsk{os.getpid()}b"
    with contextlib.ExitStack() as stack:
        for name in (one, other):
            ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
        ip("link", "add", "fabric0", "netns", one, "type", "veth", "peer", "name", "fabric0", "netns", other)
        for name, address in ((one, SENDER), (other, RECEIVER)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "fabric0")
            ip("-n", name, "link", "set", "fabric0", "up")
        shaper = [
            "tc",
            "-n",
            one,
            "qdisc",
            "add",
            "dev",
            "fabric0",
            "root",
            "tbf",
            "rate",
            "20mbit",
            "burst",
            "16kb",
            "limit",
            "300kb",
        ]
        subprocess.run(shaper, check=True, capture_output=True)
        peers = []
        for name, program in ((other, RECEIVE), (one, SEND % RECEIVER)):
            # ip netns exec mounts; setns in the child is enough and quicker
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{name}", sys.executable, "-c", program],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            peers.append(process)
            stack.callback(_end, process)
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"  # it has entered its namespace
        yield Pair(peers[1], peers[0])


def wait_for_connections(pid: int, count: int) -> None:
    """Wait until the kernel lists `count` connections in the namespace of a process."""
    until = time.monotonic() + 30
    with netlink.open_netlink(netlink.NETLINK_SOCK_DIAG, pid, ROOT) as channel:
        while len(connections_of(channel).messages) != count:
            assert time.monotonic() < until
            time.sleep(0.01)


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_bytes_and_busy_time_of_a_shaped_link(pair: Pair) -> None:
    # GIVEN a connection that was there before the window, and 23 messages in it
    pair.do("open", "a")
    pair.do("send", "a", MESSAGE)
    with FlowTracker([pair.sender.pid, pair.receiver.pid]) as tracker:
        tracker.begin()
        before = read_interfaces(pair.sender.pid), read_qdiscs(pair.sender.pid)
        begin = time.monotonic()
        for _ in range(7):
            pair.do("send", "a", MESSAGE)
            tracker.sample()
        took = time.monotonic() - begin
        flows = {flow.pid: flow for flow in tracker.summaries()}
        notes = tracker.notes
        after = read_interfaces(pair.sender.pid), read_qdiscs(pair.sender.pid)

    # THEN both ends agree, and busy time times the shaper's rate is what was sent
    sent, received = flows[pair.sender.pid], flows[pair.receiver.pid]
    assert notes == ()
    assert sent.sent_bytes == 7 * MESSAGE == received.received_bytes
    assert (sent.local, sent.interface) == (received.peer, "fabric0")
    assert sent.peer == received.local == f"{RECEIVER}:7001"
    assert sent.busy_s == pytest.approx(took, rel=0.2)
    assert sent.busy_s * RATE_HZ == pytest.approx(sent.sent_bytes, rel=0.25)
    assert 0 < sent.min_rtt_s <= sent.rtt_s < 1
    assert sent.delivery_rate_hz < 3 * RATE_HZ
    # AND the interface and its shaper tell the same story
    (counters,) = [one for one in interface_deltas(before[0], after[0]) if one.name == "fabric0"]
    assert 7 * MESSAGE < counters.tx_bytes < 1.2 * 7 * MESSAGE
    (qdisc,) = qdisc_deltas(before[1], after[1])
    assert (qdisc.interface, qdisc.kind, qdisc.rate_hz) == ("fabric0", "tbf", RATE_HZ)
    assert qdisc.overlimits > 0
    assert 7 * MESSAGE < qdisc.sent_bytes < 1.2 * 7 * MESSAGE


def test_connections_that_open_and_close_within_the_window(pair: Pair) -> None:
    pair.do("open", "old")
    with FlowTracker([pair.sender.pid]) as tracker:
        tracker.begin()
        pair.do("open", "new")
        pair.do("send", "new", MESSAGE)
        time.sleep(0.55)
        tracker.sample()
        pair.do("close", "new")
        wait_for_connections(pair.sender.pid, 1)  # until its peer answers, the FIN counts as a byte, as the SYN does
        tracker.sample()
        flows = sorted(tracker.summaries(), key=lambda flow: flow.sent_bytes)
        # the next window begins with what is still there
        tracker.begin()
        again = tracker.summaries()

    assert [flow.sent_bytes for flow in flows] == [0, MESSAGE + 1]  # the opening SYN is acknowledged as one byte
    assert [flow.local for flow in again] == [flows[0].local]
    assert again[0].sent_bytes == 0


def test_only_the_connections_of_the_chosen_processes_are_followed(pair: Pair) -> None:
    pair.do("open", "a")
    ours = tcp_sockets(pair.sender.pid)
    assert [one.peer for one in ours] == [f"{RECEIVER}:7001"]
    assert ours[0].inode in socket_inodes(pair.sender.pid)
    with FlowTracker([os.getpid()]) as tracker:
        tracker.begin()
        assert all(not flow.peer.startswith("198.51.100.") for flow in tracker.summaries())


def test_a_process_that_ends_is_no_error(pair: Pair) -> None:
    pair.do("open", "a")
    with FlowTracker([pair.sender.pid, 2**22 + 1]) as tracker:
        tracker.begin()
        _end(pair.sender)
        tracker.sample()
        assert len(tracker.summaries()) == 1
        assert any("no such process" in note for note in tracker.notes)


def test_a_thread_enters_a_namespace_and_the_process_stays(pair: Pair) -> None:
    own = namespace_inode("self", "net")
    inside = in_namespace(pair.sender.pid, "net", lambda: namespace_inode("thread-self", "net"))
    assert inside == namespace_inode(pair.sender.pid, "net") != own
    assert namespace_inode("thread-self", "net") == own
    names = {one.name: one for one in read_interfaces(pair.sender.pid).interfaces}
    assert SENDER in names["fabric0"].addresses
    assert names["fabric0"].state == "up"
    assert names["fabric0"].mtu == 1500
    assert names["fabric0"].speed_hz == 1.25e9  # a veth says 10 Gb/s


def test_the_node_name_of_a_container_is_seen_from_outside() -> None:
    program = "import socket, sys; socket.sethostname('trainer-7'); print('done', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        ["unshare", "--uts", sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        assert node_name(process.pid) == "trainer-7"
        assert os.uname().nodename != "trainer-7"
    finally:
        _end(process)


def test_a_sample_of_many_connections_is_cheap() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    channels = []
    try:
        for _ in range(113):
            channels.append(socket.create_connection(server.getsockname()))
            channels.append(server.accept()[0])
        with FlowTracker([os.getpid()]) as tracker:
            tracker.begin()
            begin = time.thread_time()
            for _ in range(20):
                tracker.sample()
            each_s = (time.thread_time() - begin) / 20
            assert len(tracker.summaries()) == 226
        assert each_s < 0.06 * pace_s()  # 0.02 are taken
    finally:
        for channel in channels:
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            channel.close()
        server.close()
