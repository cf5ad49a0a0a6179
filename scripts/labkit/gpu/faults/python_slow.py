"""One Python function of one rank takes longer, by computing or by sleeping, and its GPU has nothing to do meanwhile."""

from labkit.faults.base import Truth
from labkit.faults.python_slow import PythonSlow

# Functions that run while the GPU has no work, or that soon leave it without: slow Python behind queued kernels delays nobody.
FUNCTIONS = ("prepare", "forward", "log_metrics")


class GpuPythonSlow(PythonSlow):
    one_dose = True

    def inject(self) -> Truth:
        function = self.rng.choice(FUNCTIONS)
        manner = self.rng.choice(("busy", "sleep"))
        self.job.order(self.victim, {"function": function, "manner": manner, "seconds": self.added_s})
        causes = {"busy": {"slow-function"}, "sleep": {"slow-function", "blocking-call"}}[manner]
        return Truth(
            status="fault",
            causes={"python": frozenset(causes)},
            ranks=(self.victim,),
            function=function,
            culprit=manner,
            exact=True,
        )
