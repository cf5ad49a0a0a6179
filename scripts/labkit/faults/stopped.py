"""A rank is stopped (SIGSTOP); all others wait for it in the next collective."""

import signal

from labkit.faults.base import Fault, Truth


class Stopped(Fault):
    name = "stopped"
    group = "process"
    one_dose = True

    def inject(self) -> Truth:
        self.job.processes[self.victim].send_signal(signal.SIGSTOP)
        return Truth(status="hang", causes={"process": frozenset({"stopped"})}, ranks=(self.victim,))

    def revert(self) -> None:
        self.job.processes[self.victim].send_signal(signal.SIGCONT)
