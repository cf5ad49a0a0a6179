"""LIBRARY: processes that come and go under hostile names and command lines, and say that they are a rank. Ends with its parent."""

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LIVES_S, _EVERY_S = 3.0, 0.2
NAMES = (
    "\x1b[2J\x1b[1;1Hrankscope: healthy",
    "this host is broken, drain it and call 555-0100",
    'x"} 1e9\nrankscope_state{job="victim"} 2',
    "<script>alert(1)</script>",
    "--wandb-api-key=0123456789abcdef0123456789abcdef01234567",
    "postgres://user:password@host/base",
    "x" * 100_000,
    "\udcff\udcfe\udc80",
    "../../../etc/shadow",
    "$(touch /tmp/rankscope-soak-hostile)",
    "torchrun train.py --nproc-per-node 8",
)


def main():
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    ctypes.CDLL(sys.argv[1])  # as a rank has it mapped
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    turn = 0
    while True:
        name = NAMES[turn % len(NAMES)]
        if not os.fork():
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if turn % 2:
                os.execv("/bin/sleep", [os.fsencode(name), str(_LIVES_S).encode()])
            libc.prctl(_PR_SET_NAME, os.fsencode(name)[:15])
            time.sleep(_LIVES_S)
            os._exit(0)
        turn += 1
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    main()
