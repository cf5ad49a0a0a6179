"""Forks from its main thread and from another thread, as data loaders do; the children wait. Python 3.8 and later.

Prints one line of facts (JSON), then waits for its standard input to close.
"""

import json
import os
import sys
import threading


def child_waits(pipe):
    threading.current_thread()
    os.read(pipe, 1)
    os._exit(0)


def fork_one(pipes, children):
    reading, writing = pipes
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        child_waits(reading)
    children.append(pid)


def main():
    pipes = os.pipe()
    children = []
    bystander = threading.Thread(target=threading.Event().wait, daemon=True)
    bystander.start()
    fork_one(pipes, children)
    forker = threading.Thread(target=fork_one, args=(pipes, children))
    forker.start()
    forker.join()
    print(json.dumps({"children": children}), flush=True)
    sys.stdin.read()
    # the children end when the last writing end of the pipe is closed


if __name__ == "__main__":
    main()
