"""Synthetic GPU jobs: the windows of builders.py with kernels, copies and the counters of GPUs, NVLink, PCIe and NICs.

Every counter has the noise of a healthy machine; a fault changes the counters and, with physics, the times: a clock at a
fraction r makes kernels 1/r as long; a port at a fraction r of its rate makes the transfer 1/r as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from builders import Job, Work, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window

KERNELS = Work("gpu", "kernels", 0, 0, "", frames=())
COPY = Work("memory", "host to device", 0, 0, "")
KERNEL_S, COPY_S, TRANSFER_S = 0.20, 0.03, 0.10
CLOCK_HZ, CAP_W, NIC_HZ, NVLINK_HZ, PCIE_HZ = 1.98e9, 700.0, 50e9, 400e9, 50e9
BYTES_PER_STEP = 2e9
NUMBERS = (2, 8, 97)


def gpu(rank: int) -> str:
    return f"gpu{rank % 8}"


def pci(rank: int) -> str:
    return f"{rank // 8:04x}:{0x3B + rank % 8:02x}:00.0"


def nic(rank: int) -> str:
    return f"mlx5_{rank % 8}"


@dataclass
class Machine:
    """A GPU job. `kernels`, `copies`, `transfer`: factors on the times, by rank; `set`: counters by (rank, name) of one rank."""

    ranks: int = 8
    seed: int = 0
    noise: float = 0.04
    steps: int = 45
    window_s: float = 20.0
    kernels: dict[int, float] = field(default_factory=dict)
    copies: dict[int, float] = field(default_factory=dict)
    transfer: float = 1.0
    counters: dict[tuple[int, str], float] = field(default_factory=dict)
    everywhere: dict[str, float] = field(default_factory=dict)  # counters of all ranks
    more: list[dict[str, Any]] = field(default_factory=list)  # whole counter rows
    limits: dict[tuple[int, str], float | None] = field(default_factory=dict)  # of gauges of one rank
    of_nobody: tuple[str, ...] = ()  # prefixes of counters whose rank nobody knows
    without: tuple[str, ...] = ()  # prefixes of counters that nobody has
    blind: tuple[int, ...] = ()  # ranks whose host has no counters at all
    columns: dict[int, dict[str, Any]] = field(default_factory=dict)  # of the ranks table
    works: dict[int, list[tuple[Work, float]]] = field(default_factory=dict)  # what else a rank does
    job: dict[str, Any] = field(default_factory=dict)

    def windows(self) -> list[Window]:
        hosts = max(self.ranks // 8, 1)
        extra = {
            rank: [
                (KERNELS, KERNEL_S * self.kernels.get(rank, 1.0)), (COPY, COPY_S * self.copies.get(rank, 1.0)),
                *self.works.get(rank, []),
            ]
            for rank in range(self.ranks)
        }  # fmt: skip
        rng = np.random.default_rng(self.seed + 7919)
        for works in extra.values():
            works[0] = (KERNELS, works[0][1] * float(np.exp(rng.normal(0, 0.005))))
        own = [{"gpus": [gpu(rank)], "nics": [nic(rank)], **self.columns.get(rank, {})} for rank in range(self.ranks)]
        job = Job(
            ranks=self.ranks, hosts=hosts, steps=self.steps, noise=self.noise, seed=self.seed, extra=extra,
            window_s=self.window_s, transfer_s=TRANSFER_S * self.transfer, ranks_columns=dict(enumerate(own)), **self.job,
        )  # fmt: skip
        job.counters += [row for rank in range(self.ranks) if rank not in self.blind for row in self._rows(rank, rng)]
        job.counters += self.more
        return build(job)

    def verdict(self) -> Verdict:
        return diagnose(self.windows())

    def _rows(self, rank: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        def near(value: float, spread: float) -> float:
            return value * float(np.exp(rng.normal(0, spread)))

        sent = BYTES_PER_STEP * self.steps
        gauges = {
            ("gpu", gpu(rank)): {
                "gpu.sm_clock_hz": (near(0.97 * CLOCK_HZ, 0.008), CLOCK_HZ), "gpu.power_w": (near(0.9 * CAP_W, 0.02), CAP_W),
                "gpu.power_cap_w": (CAP_W, CAP_W), "gpu.temperature_c": (near(66, 0.05), 87.0),
                "gpu.sm_active_computing": (near(0.9, 0.01), None), "gpu.foreign_active": (0.0, None),
            },
            ("nvlink", gpu(rank)): {
                "nvlink.links_down": (0.0, 18.0), "nvlink.burst_hz": (near(0.8 * NVLINK_HZ, 0.06), NVLINK_HZ),
                "nvlink.collective_sigma": (near(0.3, 0.1), None),
            },
            ("pcie", pci(rank)): {
                "pcie.speed_gts": (32.0, 32.0), "pcie.width": (16.0, 16.0), "pcie.burst_hz": (near(0.8 * PCIE_HZ, 0.05), None),
            },
            ("nic", nic(rank)): {
                "nic.speed_hz": (NIC_HZ, NIC_HZ), "nic.state": (1.0, None), "nic.width": (4.0, 4.0),
                "nic.burst_hz": (near(0.8 * NIC_HZ, 0.06), NIC_HZ), "nic.collective_mu": (near(0.75, 0.05), None),
                "nic.collective_sigma": (near(0.3, 0.1), None),
            },
        }  # fmt: skip
        deltas = {
            ("gpu", gpu(rank)): {
                "gpu.ecc_corrected": float(rng.poisson(0.1)), "gpu.ecc_uncorrected": 0.0, "gpu.lost": 0.0, "gpu.rows_remapped": 0.0,
                "gpu.throttle.power_cap_s": near(2.0, 0.3), "gpu.throttle.hw_thermal_s": 0.0, "gpu.throttle.sw_thermal_s": 0.0,
                "gpu.throttle.power_brake_s": 0.0, "gpu.throttle.hw_slowdown_s": 0.0, "gpu.throttle.app_clocks_s": 0.0,
            },
            ("nvlink", gpu(rank)): {"nvlink.errors": float(rng.poisson(0.5)), "nvlink.tx_bytes": near(sent, 0.01)},
            ("pcie", pci(rank)): {
                "pcie.replays": float(rng.poisson(0.5)), "pcie.aer_correctable": float(rng.poisson(0.5)), "pcie.aer_nonfatal": 0.0,
                "pcie.rx_bytes": near(1e9 * self.steps, 0.02), "pcie.tx_bytes": near(2e8 * self.steps, 0.02),
            },
            ("nic", nic(rank)): {
                "nic.tx_bytes": near(sent, 0.01), "nic.rx_bytes": near(sent, 0.01), "nic.symbol_errors": float(rng.poisson(0.3)),
                "nic.crc_errors": 0.0, "nic.link_downed": 0.0, "nic.retransmits": float(rng.poisson(3)),
                "nic.out_of_sequence": float(rng.poisson(3)), "nic.pause": float(rng.poisson(3)), "nic.cnp": float(rng.poisson(30)),
            },
        }  # fmt: skip
        rows = []
        for (scope, instance), named in gauges.items():
            for name, (value, limit) in named.items():
                rows.append({"scope": scope, "instance": instance, "name": name, "kind": "gauge", "value": value, "limit": limit,
                             "maximum": value, "minimum": value})  # fmt: skip
        for (scope, instance), counts in deltas.items():
            rows += [
                {"scope": scope, "instance": instance, "name": name, "kind": "delta", "value": value}
                for name, value in counts.items()
            ]
        for row in rows:
            row["rank"] = -1 if row["name"].startswith(self.of_nobody or ("-",)) else rank
            if (rank, row["name"]) in self.limits:
                row["limit"] = self.limits[rank, row["name"]]
            changed = self.counters.get((rank, row["name"]), self.everywhere.get(row["name"]))
            if changed is not None:
                row.update(
                    value=changed, **({"maximum": changed, "minimum": changed} if row["kind"] == "gauge" else {})
                )
        return [row for row in rows if not row["name"].startswith(self.without or ("-",))]


def named(verdict: Verdict) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """(component, cause, instance, ranks) of every suspect."""
    return [(s.component, s.cause, s.instance, s.ranks) for s in verdict.suspects]
