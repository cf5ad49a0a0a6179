"""Three threads; at a line on standard input they end and five others begin. Ends with its standard input."""

import json
import sys
import threading


def waiters(count, event):
    begun = threading.Barrier(count + 1)
    threads = [threading.Thread(target=lambda: (begun.wait(), event.wait()), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    begun.wait()
    return threads


def main():
    first = threading.Event()
    threads = waiters(3, first)
    print(json.dumps({}), flush=True)
    sys.stdin.readline()
    first.set()
    for thread in threads:
        thread.join()
    waiters(5, threading.Event())
    print(json.dumps({}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
