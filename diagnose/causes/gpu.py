"""GPU, copies and transfers, by their times alone: the device or the path of the rank is slow.

Convicts: time of kind gpu (memory: copies; collective that contains no waiting: transfers) above the peers'. A slow device
slows every function on it; more work slows only what grows with it. Acquits: no such time above the peers'.
Counters of the device are not read here yet: the support is that of a behaviour without a counter.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.attribute import TRANSFER, Function, FunctionExcess
from diagnose.causes.case import NO_COUNTER, Case, Charge
from diagnose.verdict import Evidence

_SMALL = 1e-3  # of the own time: functions below say nothing
_SLOWER = 1.2

_ACTIONS = {
    "gpu": "Look at clocks, temperature, power cap, ECC errors and neighbours of this GPU (nvidia-smi -q).",
    "pcie": "Look at the PCIe link of this GPU (lspci -vv: LnkSta) and at pinned memory.",
    "network": "Look at the links of this rank: speed, errors, congestion.",
}


def judge(case: Case) -> Iterator[Charge]:
    """At most one charge for each of device, copies and transfers."""
    for component, cause, kind, detail in (
        ("gpu", "slow", "gpu", None),
        ("pcie", "slow", "memory", None),
        ("network", "slow-link", "collective", TRANSFER),
    ):
        functions = [f for f in case.functions if f.kind == kind and (detail is None or f.detail == detail)]
        excess = sum(f.excess_s for f in functions)
        if functions and excess > 0:
            yield _charge(case, component, cause, functions, excess)


def _charge(case: Case, component: str, cause: str, functions: list[FunctionExcess], excess: float) -> Charge:
    worst = max(functions, key=lambda f: f.excess_s)
    own, expected = sum(f.own_s for f in functions), sum(f.peers_s for f in functions)
    compared = [f for f in functions if f.own_s >= _SMALL * case.own_s]
    slower = sum(f.own_s >= _SLOWER * f.peers_s for f in compared)
    evidence = [
        Evidence("functions", f"time in {worst.name}", worst.own_s, worst.peers_s, "s/step", len(case.peers)),
        Evidence("functions", f"all {worst.kind} time", own, expected, "s/step", len(case.peers)),
    ]
    if len(compared) > 1:
        evidence.append(Evidence("functions", f"{worst.kind} functions slower than the peers'", f"{slower} of {len(compared)}",
                                 None, ""))  # fmt: skip
    return Charge(
        component=component,
        cause=cause,
        explained_s=excess,
        support=NO_COUNTER,
        evidence=tuple(evidence),
        action=_ACTIONS[component],
        function=Function(worst.kind, worst.name, worst.file, worst.line),
    )
