"""The faults of the lab. A new one is a class in one of these files (or a new one) and its name in ALL."""

from labkit.faults.base import Fault, Truth
from labkit.faults.cpu_hog import CpuHog
from labkit.faults.cpu_quota import CpuQuota, EqualQuotas
from labkit.faults.data_loading import FewWorkers, SlowCollate
from labkit.faults.everywhere import BiggerModel, SlowEverywhere
from labkit.faults.housekeeping import GcStorm, GilHog, LockHeld
from labkit.faults.memory import MemoryLimit, PageFaults
from labkit.faults.none import NoFault, Noisy
from labkit.faults.packet_flood import PacketFlood
from labkit.faults.pairs import FunctionAndLink, FunctionAndRead, HogAndRead, QuotaAndFunction, TwoFunctions
from labkit.faults.pinned_together import PinnedTogether
from labkit.faults.pipe_print import PipePrint
from labkit.faults.python_slow import Every50th, PythonSlow
from labkit.faults.reniced import Reniced
from labkit.faults.slow_checkpoint import SlowCheckpoint
from labkit.faults.slow_link import CutOff, PacketLoss, SlowFabric, SlowLink
from labkit.faults.slow_read import SlowFolder, SlowRead
from labkit.faults.stopped import Stopped
from labkit.faults.strangers import GivesWay, Strangers
from labkit.faults.uneven import HeavyStage, InTurn, LongSequences

_KINDS: tuple[type[Fault], ...] = (
    PythonSlow, Every50th, GcStorm, GilHog, LockHeld, PipePrint, SlowCollate, FewWorkers,
    CpuHog, CpuQuota, PinnedTogether, PacketFlood, Reniced, Strangers,
    MemoryLimit, PageFaults,
    SlowRead, SlowCheckpoint, SlowFolder,
    SlowLink, PacketLoss, SlowFabric, CutOff,
    LongSequences, InTurn, HeavyStage,
    SlowEverywhere, BiggerModel, EqualQuotas,
    Stopped,
    TwoFunctions, FunctionAndRead, QuotaAndFunction, HogAndRead, FunctionAndLink,
    NoFault, Noisy, GivesWay,
)  # fmt: skip
ALL: dict[str, type[Fault]] = {kind.name: kind for kind in _KINDS}
# What a quick look at everything takes: the first six kinds of fault, and no fault.
CLASSIC = ("python-slow", "cpu-hog", "cpu-quota", "slow-link", "slow-read", "stopped", "none")

__all__ = ["ALL", "CLASSIC", "Fault", "Truth"]
