"""A rank's reads from the disk are throttled (blkio under cgroup v1, io.max under v2)."""

from labkit.faults.base import Fault, Truth
from labkit.shell import Impossible


class SlowRead(Fault):
    name = "slow-read"

    def inject(self) -> Truth:
        if self.job.device is None:
            raise Impossible("the lab's folder is on no block device, and no loop device could be made for it")
        # The throttle is a mean: what was not read while the rank computed may be read at once afterwards.
        rate = int(self.job.plan.sample_bytes / (self.healthy.step_s + self.added_s))
        self.job.groups[self.victim].limit_reads(self.job.device, rate)
        return Truth(
            status="fault",
            causes={"storage": frozenset({"slow-read", "stalled"})},
            ranks=(self.victim,),
            culprit=self.job.device_kind,
        )

    def revert(self) -> None:
        if self.job.device is not None:
            self.job.groups[self.victim].limit_reads(self.job.device, None)
