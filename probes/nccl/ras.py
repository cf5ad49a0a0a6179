"""Query a NCCL job's RAS service, which NCCL 2.24 and later offers on a port of the loopback.

In: the pid of a rank, whose network namespace is entered. Out: RasAnswer, or RasSilence with the
reason. The job is not changed: its RAS threads answer anyone on the port (ncclras is such a
client). All its processes on a host listen on one port and the kernel picks one of them, which may
be stopped: hence several attempts, each with a short greeting, all of them within one limit.
Protocol: NCCL src/ras/client.cc.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base import rights
from rankscope.probes.host.namespaces import in_namespace
from rankscope.probes.host.procfs import ROOT, read_environ, reason
from rankscope.probes.nccl.ras_answer import NotRas, RasAnswer, parse

PORT = 28028
LIMIT_S = 5.0
_GREETING_S = 0.7  # a live process takes some milliseconds
_ATTEMPTS = 4
_GATHERING_S = 2  # how long RAS waits for the other processes of the job; a whole number for the protocol
_MAX_BYTES = (
    32 << 20
)  # 0.9 KB per rank and communicator: 8,000 ranks with 4 each; parsed it takes 3.6 times that (measured)
_MAX_LINE = 4096
_ADDRESSES = ("127.0.0.1", "::1")  # NCCL listens on whatever `localhost` means there


@dataclass(frozen=True, slots=True)
class RasSilence:
    """The reason why there was no answer."""

    reason: str


class _NoAnswer(Exception):
    """This attempt failed; another may not."""


def ask(pid: int, *, limit_s: float = LIMIT_S, root: Path = ROOT) -> RasAnswer | RasSilence:
    """Query RAS about the job of process `pid` and parse the answer. Never raises.

    Takes `limit_s` at most, usually milliseconds.
    """
    asked = rights.delegate()
    try:
        answer = fetch(pid, limit_s=limit_s, root=root) if asked is None else _fetched_elsewhere(asked, pid)
    except (OSError, ValueError) as error:
        return RasSilence(f"RAS of NCCL cannot be queried: {reason(error)}")
    if isinstance(answer, RasSilence):
        return answer
    try:
        return parse(answer)
    except NotRas as error:
        return RasSilence(f"NCCL's RAS answer could not be read: {error}")


def fetch(pid: int, *, limit_s: float = LIMIT_S, root: Path = ROOT) -> bytes | RasSilence:
    """Fetch the raw RAS answer from the network namespace of process `pid`, within `limit_s`.

    Raises OSError; ValueError where RAS is off or not on the loopback.
    """
    port, hosts = listening(read_environ(pid, root))
    deadline = time.monotonic() + limit_s
    return in_namespace(pid, "net", lambda: _fetch(hosts, port, deadline), root)


def _fetched_elsewhere(asked: rights.Delegate, pid: int) -> bytes | RasSilence:
    """Fetch the raw RAS answer through the process `asked`, which has the rights to do so.

    Raises what that process raises.
    """
    told, files = asked.ask("ras", pid=pid)
    if told["silence"]:
        return RasSilence(str(told["silence"]))
    with os.fdopen(files[0], "rb") as file:
        file.seek(0)
        return file.read()


def listening(environment: dict[str, str]) -> tuple[int, tuple[str, ...]]:
    """Return (port, loopback addresses) of RAS, as the environment of a process determines them.

    ValueError where it is off or elsewhere. NCCL_RAS_ADDR comes from the target, and we are root:
    only loopback addresses are ever connected to.
    """
    if environment.get("NCCL_RAS_ENABLE", "1").strip() == "0":
        raise ValueError("it is switched off in this job (NCCL_RAS_ENABLE=0)")
    address = environment.get("NCCL_RAS_ADDR", "").strip()
    if not address:
        return PORT, _ADDRESSES
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"NCCL_RAS_ADDR is {address[:64]!r}")
    if host == "localhost":
        return int(port), _ADDRESSES
    if ipaddress.ip_address(host).is_loopback:
        return int(port), (host,)
    raise ValueError(f"it listens on {address[:64]!r}, not on the loopback")


def _fetch(hosts: tuple[str, ...], port: int, deadline: float) -> bytes | RasSilence:
    """Fetch the raw RAS answer from the first of `hosts` that answers, trying each up to `_ATTEMPTS` times.

    In the network namespace of this thread, until `deadline` (seconds of time.monotonic). Never raises.
    """
    said = "nothing listens on its port"
    for attempt in range(_ATTEMPTS):
        for host in hosts:
            left = deadline - time.monotonic()
            if left <= 0:
                return RasSilence(f"RAS of NCCL: {said}")
            try:
                with socket.create_connection((host, port), timeout=min(left, _GREETING_S)) as connection:
                    return _converse(connection, deadline)
            except ConnectionRefusedError:
                continue
            except _NoAnswer as error:
                said = str(error)
            except TimeoutError:
                said = "a process of the job accepts the connection and does not answer"
            except OSError as error:
                said = reason(error)
        if attempt == 0 and said == "nothing listens on its port":
            break
    return RasSilence(f"RAS of NCCL: {said}")


def _converse(connection: socket.socket, deadline: float) -> bytes:
    """Request the job's status over an open connection; return the raw answer, up to its end.

    Greeting, limits, JSON where supported, status until the other side closes. Raises OSError,
    TimeoutError after `deadline`; _NoAnswer where it is not RAS, or the answer is too long.
    """
    greeted = min(time.monotonic() + _GREETING_S, deadline)
    line = _request(connection, "CLIENT PROTOCOL 2", greeted)
    if not line.upper().startswith("SERVER PROTOCOL "):
        raise _NoAnswer("something other than RAS listens on its port")
    _request(connection, f"TIMEOUT {_GATHERING_S}", greeted)
    _request(connection, "SET FORMAT json", greeted)  # an error line before NCCL 2.28.7, which then answers in text
    _send(connection, "VERBOSE STATUS", greeted)
    parts: list[bytes] = []
    size = 0
    while True:
        part = _receive(connection, deadline)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > _MAX_BYTES:
            raise _NoAnswer(f"its answer is longer than {_MAX_BYTES >> 20} MiB")


def _request(connection: socket.socket, command: str, deadline: float) -> str:
    """Send a command and return the line that answers it. Raises OSError, TimeoutError.

    _NoAnswer where the connection ends before the line does, or the line exceeds `_MAX_LINE` bytes.
    """
    _send(connection, command, deadline)
    line = b""
    while not line.endswith(b"\n"):
        part = _receive(connection, deadline)
        if not part or len(line) + len(part) > _MAX_LINE:
            raise _NoAnswer("something other than RAS listens on its port")
        line += part
    return line.decode("utf-8", "replace")


def _send(connection: socket.socket, command: str, deadline: float) -> None:
    """Send a command and a newline by `deadline` (seconds of time.monotonic). Raises OSError, TimeoutError."""
    connection.settimeout(_left_s(deadline))
    connection.sendall(command.encode() + b"\n")


def _receive(connection: socket.socket, deadline: float) -> bytes:
    """Receive some bytes by `deadline`; b'' where the other side has closed. Raises OSError, TimeoutError."""
    connection.settimeout(_left_s(deadline))
    return connection.recv(1 << 16)


def _left_s(deadline: float) -> float:
    """Return the seconds until `deadline` (time.monotonic). Raises TimeoutError where it has passed."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
