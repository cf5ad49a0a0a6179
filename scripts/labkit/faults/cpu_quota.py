"""Control groups may use less CPU than the ranks need (cfs quota): one rank's, or all."""

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


class EqualQuotas(Fault):
    """Every rank has the same quota, as where a job description limits its containers. No baseline: the kernel counts."""

    name = "equal-quotas"
    group = "everywhere"

    def inject(self) -> Truth:
        healthy, groups = self.healthy, self.job.groups
        used = max(healthy.cpu_s) / healthy.step_s

        def limit(level: float) -> None:
            for group in groups:
                group.limit_cpu(used / level)

        self.tune(limit, 0.7 + self.added_share, 0.3, 4.0)
        everybody = tuple(range(self.job.plan.ranks))
        return Truth("fault", {"cpu": frozenset({"quota"})}, everybody, everyone=True, exact=True)

    def revert(self) -> None:
        for group in self.job.groups:
            group.limit_cpu(None)
