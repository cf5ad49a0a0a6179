"""One rank: LIBRARY TIMES. It writes the time of each step into TIMES. On a line of its standard input it starts a storm below itself."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

WORK_S, PAUSE_S = 0.004, 0.010


def work() -> None:
    end = time.perf_counter() + WORK_S
    while time.perf_counter() < end:
        pass


def meet(rank: int, world: int) -> list[socket.socket]:
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank:
        for _ in range(200):
            try:
                return [socket.create_connection(place)]
            except OSError:
                time.sleep(0.05)
        raise SystemExit("rank 0 cannot be reached")
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(place)
        door.listen()
        return [door.accept()[0] for _ in range(world - 1)]


def storms() -> None:
    storm = None
    for line in sys.stdin:
        if storm is not None:
            storm.kill()
            storm.wait()
            storm = None
        if line.strip():
            program = Path(__file__).with_name("storm.py")
            storm = subprocess.Popen([sys.executable, str(program), *line.split()], stdin=subprocess.DEVNULL)
    os._exit(0)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    reduce_all = ctypes.CDLL(sys.argv[1])._ZN4gloo9allreduceERNS_16AllreduceOptionsE
    peers = meet(rank, world)
    handles = (ctypes.c_int * max(len(peers), 1))(*(peer.fileno() for peer in peers))
    threading.Thread(target=storms, daemon=True).start()
    times = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        work()
        time.sleep(PAUSE_S)
        if reduce_all(handles, len(peers), int(rank == 0)):
            raise SystemExit("a peer has gone")
        os.write(times, struct.pack("<d", time.monotonic()))


if __name__ == "__main__":
    main()
