"""Other processes compute on the core of one rank: the rank is ready, and does not run."""

from labkit.faults.base import Fault, Truth, busy_program

HOGS = 3
# A rank whose fair share just covers its need still waits for whole slices of the scheduler: the effect is larger than the
# arithmetic of shares says (measured), and this factor corrects for it.
SHARE_OF_NEED = 1.5
NAMES = ("compress-logs", "index-files", "checksum", "backup-agent", "node-scanner")


class CpuHog(Fault):
    name = "cpu-hog"
    group = "cpu"

    def inject(self) -> Truth:
        # Only the rank that has a core for itself: on a shared core more than one rank would suffer.
        self.victim = self.job.lone
        name = self.rng.choice(NAMES)
        program = busy_program(self.job.folder, name)
        hogs = self.job.companion_group("hogs")
        # Such a weight that the rank's fair share of the core is less than it needs: with plenty for everybody a rank
        # that computes a few milliseconds a step would hardly notice.
        share = SHARE_OF_NEED * self.healthy.cpu_s[self.victim] / (self.healthy.step_s + self.extra_s)
        hogs.weigh_cpu((1 - share) / share)
        cores = self.job.cores_of(self.victim)
        for _ in range(HOGS):
            self.start([program], hogs, cores)
        return Truth(status="fault", causes={"cpu": frozenset({"contended"})}, ranks=(self.victim,), culprit=name)
