"""The program that live tests look at: recursion of prime depth, two threads, a generator. Runs on Python 3.6 and later.

Prints one line of facts (JSON), then waits for its standard input to close.
"""

import json
import os
import sys
import threading
import time

DEPTH = 23


def descend(levels):
    if levels > 1:
        return descend(levels - 1)
    return wait_here()


def wait_here():
    ready.append(1)
    sys.stdin.read()


def numbers():
    ready.append(1)
    while not over.is_set():
        time.sleep(0.5)
        yield 1


class Consumer:
    def consume(self):
        for _ in numbers():
            pass


def sleep_with_ünïcode_名前():  # noqa: PLC2401 - names need not be ASCII
    ready.append(1)
    over.wait()


ready = []
over = threading.Event()
threads = [
    threading.Thread(target=Consumer().consume, name="consumer"),
    threading.Thread(target=sleep_with_ünïcode_名前, name="sleeper"),
]


def main():
    for thread in threads:
        thread.daemon = True
        thread.start()
    while len(ready) < 2:
        time.sleep(0.01)
    native = {t.name: getattr(t, "native_id", None) for t in threads}
    print(json.dumps({"pid": os.getpid(), "depth": DEPTH, "native": native, "version": sys.version_info[:3]}))
    sys.stdout.flush()
    descend(DEPTH)


if __name__ == "__main__":
    main()
