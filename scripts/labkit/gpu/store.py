"""How the ranks meet: rank 0 hands a few bytes to everybody over TCP, as torch's TCPStore does for NCCL's unique id."""

from __future__ import annotations

import os
import socket
import time

_PATIENCE_S = 60.0


class Rendezvous:
    """The connections stay open for the life of the job, as those of a store do."""

    def __init__(self, rank: int, world: int) -> None:
        self._rank, self._world = rank, world
        self._place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self._peers: list[socket.socket] = []

    def share(self, message: bytes, length: int) -> bytes:
        """What rank 0 says, on every rank; `length` is known to all, `message` is empty on all but rank 0."""
        if self._rank == 0:
            with socket.create_server(self._place, backlog=self._world) as server:
                server.settimeout(_PATIENCE_S)
                self._peers = [server.accept()[0] for _ in range(self._world - 1)]
            for peer in self._peers:
                peer.sendall(message)
            return message
        master = self._connect()
        self._peers = [master]
        found = b""
        while len(found) < length:
            part = master.recv(length - len(found))
            if not part:
                raise ConnectionError("rank 0 left before it said anything")
            found += part
        return found

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return socket.create_connection(self._place, timeout=_PATIENCE_S)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
