"""A process that does not belong to the job computes on the GPU of one rank."""

from labkit.faults.base import Truth
from labkit.gpu.faults.base import GpuFault

NAMES = ("eval-server", "ray-worker", "notebook", "render-farm", "gpu-miner")


class Shared(GpuFault):
    name = "gpu-shared"

    def inject(self) -> Truth:
        name = self.rng.choice(NAMES)
        # A real process, so that its name can be read where the GPU says its pid. A script's process is called after its file.
        script = self.job.folder / name
        script.write_text("#!/bin/sh\nwhile :; do sleep 1; done\n")
        script.chmod(0o700)
        group = self.job.companion_group("foreign")
        self._process = self.job.start_companion([str(script)], group, self.job.cores_of(self.victim))
        memory = int(self.rng.uniform(4, 20) * 2**30)
        self.gpu.set(foreign_pid=self._process.pid, foreign_memory_bytes=memory, foreign_share=1 - self.share)
        return self.truth({"gpu": {"contended"}}, self.gpu_name, culprit=name)

    def revert(self) -> None:
        super().revert()
        self._process.kill()
        self._process.wait()
