"""One Python function of one rank takes longer, by computing or by sleeping."""

import json

from labkit.faults.base import Fault, Truth

FUNCTIONS = ("tokenize", "augment", "build_mask", "collate", "log_metrics")


class PythonSlow(Fault):
    name = "python-slow"

    def inject(self) -> Truth:
        function = self.rng.choice(FUNCTIONS)
        manner = self.rng.choice(("busy", "sleep"))
        target = self.job.control_file(self.victim)
        draft = target.with_suffix(".draft")
        draft.write_text(json.dumps({"function": function, "manner": manner, "seconds": self.added_s}))
        draft.rename(target)
        causes = {"busy": {"slow-function"}, "sleep": {"slow-function", "blocking-call"}}[manner]
        return Truth(
            status="fault",
            causes={"python": frozenset(causes)},
            ranks=(self.victim,),
            function=function,
            culprit=manner,
        )

    def revert(self) -> None:
        self.job.control_file(self.victim).unlink(missing_ok=True)
