"""One rank: LIBRARY TIMES. It writes the time of each step into TIMES. On a line of its standard input a storm begins."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import storm

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
    """Storms in this process, whose children are the rank's own, as loader workers are; a crowd is a program below it."""
    end = None
    for line in sys.stdin:
        if end is not None:
            end()
        end = begin(line.split()) if line.strip() else None
    os._exit(0)


def begin(words: list[str]) -> Callable[[], None]:
    """Start one. What is to be called to end it."""
    if words[0] in storm.IN_THE_RANK:
        ended = threading.Event()
        thread = threading.Thread(target=storm.IN_THE_RANK[words[0]], args=(int(words[1]), ended), daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join()

        return end
    program = subprocess.Popen([sys.executable, storm.__file__, *words], stdin=subprocess.DEVNULL)

    def kill() -> None:
        program.kill()
        program.wait()

    return kill


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
