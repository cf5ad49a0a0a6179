"""One GPU computes more slowly, fails, or is shared with a process that is not of the job; and a Python function that is slow beside it."""

import signal

from labkit.faults.base import Truth
from labkit.faults.python_slow import PythonSlow
from labkit.gpu.faults.base import (
    HW_SLOWDOWN,
    HW_THERMAL,
    INTO_WINDOW_S,
    MAX_CLOCK_HZ,
    POWER_BRAKE,
    SW_THERMAL,
    GpuFault,
)  # fmt: skip
from labkit.gpu.launch import RANKS

IDLE_W = 90.0
# Watts that the job's kernels draw at full clock, in addition to the idle power (sim/state.c).
SPAN_W = 437.0
STRANGERS = ("eval-server", "ray-worker", "notebook", "render-farm", "gpu-miner")
# 48: uncorrectable memory error; 94: the same, contained to one process; 13: exception in the graphics engine.
KILLS = (48, 94, 13)
# Functions that run while the GPU has no work, or that soon leave it without: slow Python behind queued kernels delays nobody.
FUNCTIONS = ("prepare", "forward", "log_metrics")


class Thermal(GpuFault):
    """Too hot, so that the clock is lowered: at the driver's own limit, or at the hardware's threshold."""

    name = "gpu-thermal"

    def inject(self) -> Truth:
        hardware = self.rng.random() < 0.5
        self.gpu.set(
            clock_hz=self.share * MAX_CLOCK_HZ,
            throttle_reasons=HW_THERMAL | HW_SLOWDOWN if hardware else SW_THERMAL,
            temperature_c=self.rng.uniform(87, 92) if hardware else self.rng.uniform(83, 87),
        )
        return self.truth({"gpu": {"throttled-thermal"}}, self.gpu_name, culprit="hardware" if hardware else "software")


class PowerCap(GpuFault):
    """It may draw less power than it needs: somebody lowered the cap."""

    name = "gpu-power"

    def inject(self) -> Truth:
        # The clock follows from the cap: the machine's physics, not the fault, lowers it and sets the reason.
        self.gpu.set(power_cap_w=round(IDLE_W + self.share * SPAN_W))
        return self.truth({"gpu": {"throttled-power"}}, self.gpu_name)


class PowerBrake(GpuFault):
    """The power supply asks for less."""

    name = "gpu-brake"

    def inject(self) -> Truth:
        self.gpu.set(clock_hz=self.share * MAX_CLOCK_HZ, throttle_reasons=POWER_BRAKE | HW_SLOWDOWN)
        return self.truth({"gpu": {"throttled-power"}}, self.gpu_name)


class ClockLow(GpuFault):
    """Somebody locked the clock (nvidia-smi -lgc) and left it so: neither hot nor short of power, only slow."""

    name = "gpu-clock"

    def inject(self) -> Truth:
        # Clocks come in steps of 15 MHz.
        self.gpu.set(clock_limit_hz=round(self.share * MAX_CLOCK_HZ / 15e6) * 15e6)
        return self.truth({"gpu": {"clock-low"}}, self.gpu_name)


class EccStorm(GpuFault):
    """Its memory corrects errors all the time, and kernels wait for the repeated reads."""

    name = "gpu-ecc"

    def inject(self) -> Truth:
        self.gpu.set(ecc_corrected_hz=self.rng.uniform(50, 2000), speed=self.share)
        return self.truth({"gpu": {"ecc-errors"}}, self.gpu_name)


class SlowKernels(GpuFault):
    """Kernels take longer and no counter says why: the honest answer is gpu/slow."""

    name = "gpu-slow"

    def inject(self) -> Truth:
        self.gpu.set(speed=self.share)
        return self.truth({"gpu": {"slow"}}, self.gpu_name)


class Xid(GpuFault):
    """The driver reports an Xid, and the GPU goes on slowly.

    62: the micro-controller that sets the clocks stopped. 92: too many memory errors had to be corrected.
    """

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
    """The driver reports an Xid, and the rank's process is lost."""

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


class Lost(GpuFault):
    """It falls off the bus in the middle of the window: NVML says so, its rank hangs or dies, all others wait."""

    name = "gpu-lost"
    spoils = True

    def inject(self) -> Truth:
        # The rank may get an error from CUDA, and end.
        self.gpu_job.expect_the_end_of(self.victim)
        self.later(self.rng.uniform(*INTO_WINDOW_S), self._strike)
        return self.truth({"gpu": {"lost", "xid"}}, self.gpu_name, status="hang")

    def _strike(self) -> None:
        self.gpu.report_xid(79)
        self.gpu.set(lost=True)


class Shared(GpuFault):
    """A process that does not belong to the job computes on it."""

    name = "gpu-shared"

    def inject(self) -> Truth:
        name = self.rng.choice(STRANGERS)
        # A real process, so that its name can be read where the GPU says its pid. A script's process is called after its file.
        script = self.job.folder / name
        script.write_text("#!/bin/sh\nwhile :; do sleep 1; done\n")
        script.chmod(0o700)
        group = self.job.companion_group("foreign")
        process = self.job.start_companion([str(script)], group, self.job.cores_of(self.victim))
        self._started.append(process)
        memory = int(self.rng.uniform(4, 20) * 2**30)
        self.gpu.set(foreign_pid=process.pid, foreign_memory_bytes=memory, foreign_share=1 - self.share)
        return self.truth({"gpu": {"contended"}}, self.gpu_name, culprit=name)


class Harmless(GpuFault):
    """Counters move here and there, as they do on any cluster, and nothing is slower for it: whoever is accused is accused wrongly."""

    name = "harmless"
    group = "healthy"

    def inject(self) -> Truth:
        # A GPU that corrects an error now and then, another that is warmer than the rest, a port with a rare symbol error.
        self.gpu.set(ecc_corrected_hz=self.rng.uniform(0.1, 0.5))
        self.nic.set(symbol_error_hz=self.rng.uniform(0.05, 0.3))
        warm = self.altered_gpu((self.victim + self.rng.randrange(1, RANKS)) % RANKS)
        warm.set(temperature_c=self.rng.uniform(74, 79))
        return Truth(status="healthy", causes={})


class GpuPythonSlow(PythonSlow):
    """One Python function of one rank takes longer, by computing or by sleeping, and its GPU has nothing to do meanwhile."""

    one_dose = True
    exact = True

    def inject(self) -> Truth:
        self._choice = (self.rng.choice(FUNCTIONS), self.rng.choice(("busy", "sleep")))
        return self.slow_down(self.added_s)
