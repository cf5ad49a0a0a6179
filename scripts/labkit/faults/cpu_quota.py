"""A rank's control group may use less CPU than the rank needs (cfs quota)."""

from labkit.faults.base import Fault, Truth


class CpuQuota(Fault):
    name = "cpu-quota"
    group = "cpu"

    def inject(self) -> Truth:
        used = self.healthy.cpu_s[self.victim]
        self.job.groups[self.victim].limit_cpu(used / (self.healthy.step_s + self.extra_s))
        return Truth(status="fault", causes={"cpu": frozenset({"quota"})}, ranks=(self.victim,))

    def revert(self) -> None:
        self.job.groups[self.victim].limit_cpu(None)
