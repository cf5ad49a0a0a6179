"""What a rank's interpreter does beside the training: collecting garbage, and a thread that wants the GIL or a lock."""

from labkit.faults.base import Fault, Truth
from labkit.programs import PROGRAMS

_IDLE_S = 0.02
_HIDDEN_S = 0.01


class GcStorm(Fault):
    """A full collection of garbage, or several, in every step. The cause must be said: any function may be interrupted by it.

    The function that asks for the collections (release_memory) is as good an answer: it is where the code must be changed.
    """

    name = "gc-storm"
    group = "python"

    def inject(self) -> Truth:
        self.tune(lambda seconds: self.job.order(self.victim, {"collect_s": seconds}), self.extra_s, 0.002, 2.0)
        answers = [({"gc"}, None), ({"slow-function"}, "release_memory")]
        first, second = (
            Truth("fault", {"python": frozenset(causes)}, (self.victim,), function=function, exact=True)
            for causes, function in answers
        )
        return Truth("fault", first.causes, first.ranks, exact=True, alternatives=(second,))


class GilHog(Fault):
    """A thread turns metrics into text after each step, in one call that keeps the GIL: the training thread waits for it."""

    name = "gil-hog"
    group = "python"

    def inject(self) -> Truth:
        # The part of the hold that overlaps with the training thread's file read delays nobody.
        self.tune(
            lambda seconds: self.job.order(self.victim, {"upload": {"encode_s": seconds}}),
            self.extra_s + _HIDDEN_S, 0.005, 2.0,
        )  # fmt: skip
        return Truth("fault", {"python": frozenset({"gil"})}, (self.victim,), exact=True, culprit="encode")


class LockHeld(Fault):
    """A thread sends the metrics with their lock held; the training thread waits for the lock in log_metrics, once a step.

    That log_metrics blocks is a right answer as well: it is the same place of the same rank.
    """

    name = "lock-held"
    group = "python"

    def inject(self) -> Truth:
        # The training thread gets the lock once in each period, so a step takes one period.
        hold_s = self.healthy.step_s + self.added_s - _IDLE_S
        self.job.order(self.victim, {"upload": {"hold_s": hold_s, "idle_s": _IDLE_S}})
        lock = frozenset({"lock"})
        blocked = Truth(
            "fault",
            {"python": frozenset({"blocking-call"})},
            (self.victim,),
            function=PROGRAMS[self.job.plan.program].logs,
        )
        return Truth("fault", {"python": lock}, (self.victim,), exact=True, culprit="upload", alternatives=(blocked,))
