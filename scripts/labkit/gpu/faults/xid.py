"""The driver reports an Xid: with a GPU that goes on slowly, or with one whose process is lost."""

import signal

from labkit.faults.base import Truth
from labkit.gpu.faults.base import INTO_WINDOW_S, MAX_CLOCK_HZ, GpuFault

# 48: uncorrectable memory error; 94: the same, contained to one process; 13: exception in the graphics engine.
KILLS = (48, 94, 13)


class Xid(GpuFault):
    """62: the micro-controller that sets the clocks stopped. 92: too many memory errors had to be corrected."""

    name = "gpu-xid"

    def inject(self) -> Truth:
        number = self.rng.choice((62, 92))
        if number == 62:
            self.gpu.set(clock_hz=self.share * MAX_CLOCK_HZ)
        else:
            self.gpu.set(speed=self.share, ecc_corrected_hz=self.rng.uniform(50, 2000))
        # It is said again and again while the fault lasts.
        at = 0.0
        while at < 40:
            self.later(at, lambda: self.gpu.report_xid(number))
            at += self.rng.uniform(1.5, 3.0)
        causes = {"xid", "ecc-errors"} if number == 92 else {"xid"}
        return self.truth({"gpu": causes}, self.gpu_name, culprit=f"xid {number}")


class XidFatal(GpuFault):
    name = "gpu-xid-fatal"
    spoils = True

    def inject(self) -> Truth:
        number = self.rng.choice(KILLS)
        self.gpu_job.expect_the_end_of(self.victim)
        self.later(self.rng.uniform(*INTO_WINDOW_S), lambda: self._strike(number))
        causes = {"xid"} if number == 13 else {"xid", "ecc-errors"}
        return self.truth({"gpu": causes}, self.gpu_name, status="hang", culprit=f"xid {number}")

    def _strike(self, number: int) -> None:
        self.gpu.report_xid(number)
        if number != 13:
            self.gpu.set(ecc_uncorrected=1)
        # What NCCL's watchdog does when CUDA returns an error.
        self.job.processes[self.victim].send_signal(signal.SIGABRT)
