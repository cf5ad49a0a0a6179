"""What a window says of a real training, beside the job's own account and nvidia-smi's. Pure, but for `exported_rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.observer.window.manifest import EVENTS_DROPPED

_LIBRARIES = ("libcudart", "libcuda.so", "libnccl.so", "libtorch_cpu.so")
_CLOCK_SLACK = 0.15  # of readings of two programs, a moment apart
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Exported:
    """Rows of the call table in one library that the job has mapped. `rows`: index in the table, name."""

    library: str
    rows: tuple[tuple[int, str], ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """What the job says that one device did, as shares of an interval; `step_s`, `compute_s`: means per step of each rank."""

    ranks: tuple[int, ...]
    computing: float  # any rank's forward, backward or optimizer on the device
    exchanging: float  # the rest, while any rank averages gradients that no computing hides
    idle: float
    step_s: tuple[float, ...]
    compute_s: tuple[float, ...]


def exported_rows(pid: int) -> list[Exported]:
    """By library file that a process maps, what the observer looks for in it."""
    from rankscope.probes.calls.probe import functions_of, mapped_libraries
    from rankscope.probes.calls.table import CALL_TABLE

    found = []
    for library in mapped_libraries(pid, _LIBRARIES):
        rows = [(index, row) for index, row in enumerate(CALL_TABLE) if library.name.startswith(row.libraries or "/")]
        with library.open() as file:
            functions = functions_of(file, [row for _, row in rows])
        there = tuple((index, row.name) for index, row in rows if functions[row])
        absent = tuple(row.symbol[:40] for _, row in rows if not functions[row])
        found.append(Exported(library.name, there, absent))
    return found


def account(
    lines: Sequence[Sequence[Sequence[float]]], since: float, until: float, devices: Sequence[int]
) -> list[Account]:
    """`lines`: per rank, those of job.py; `devices`: of each rank. Shares by the union of the ranks of a device."""
    found = []
    for device in sorted({*devices}):
        ranks = tuple(rank for rank, own in enumerate(devices) if own == device)
        kept = {rank: [line for line in lines[rank] if line[4] > since and line[0] < until] for rank in ranks}
        steps = [line for rank in ranks for line in kept[rank]]
        working = [span for line in steps for span in ((line[1], line[2]), (line[3], line[4]))]
        computing = covered(working, since, until)
        either = covered([*working, *((line[2], line[3]) for line in steps)], since, until)
        whole = until - since
        found.append(
            Account(
                ranks,
                computing / whole,
                (either - computing) / whole,
                1 - either / whole,
                tuple(_mean([line[4] - line[0] for line in kept[rank]]) for rank in ranks),
                tuple(_mean([line[2] - line[1] + line[4] - line[3] for line in kept[rank]]) for rank in ranks),
            )
        )
    return found


def covered(spans: Sequence[Span], since: float, until: float) -> float:
    """Seconds of the interval that lie in at least one span."""
    total, reach = 0.0, since
    for begin, end in sorted(spans):
        last = min(end, until)
        if last > reach:
            total += last - max(begin, reach)
            reach = last
    return total


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """All that is compared. `tables` and `manifest` of one window; `smi`: nvidia-smi's means over it."""

    on_gpu: bool
    backend: str
    pids: Sequence[int]
    manifest: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]
    accounts: Sequence[Account]
    smi: dict[str, float]
    exported: Sequence[Exported]

    @property
    def _ranks(self) -> list[dict[str, Any]]:
        return sorted(
            (row for row in self.tables["ranks"] if row["pid"] in self.pids), key=lambda row: int(row["rank"])
        )

    @property
    def _lost_events(self) -> int:
        """Of the whole host."""
        return sum(int(loss["count"]) for loss in self.manifest["losses"] if loss["name"] == EVENTS_DROPPED)

    def _counter(self, name: str, rank: int) -> float | None:
        values = [row["value"] for row in self.tables["counters"] if row["name"] == name and row["rank"] == rank]
        return float(values[0]) if values else None

    def _gauge(self, name: str) -> float | None:
        """Of the first rank's GPU: what nvidia-smi was asked about."""
        gpus = [gpu for rank in self._ranks for gpu in rank["gpus"]][:1]
        values = [row["value"] for row in self.tables["counters"] if row["name"] == name and row["instance"] in gpus]
        return float(values[0]) if values else None

    def wrong(self) -> list[str]:
        """What must not be, whatever the GPU."""
        found = []
        if len(self._ranks) != len(self.pids):
            found.append(f"{len(self._ranks)} of {len(self.pids)} ranks found")
        if not self.on_gpu:
            return found
        found += [f"rank {rank['rank']} has no GPU" for rank in self._ranks if not rank["gpus"]]
        if not any(row["kind"] == "gpu" for row in self.tables["patterns"]):
            found.append("no row of kind gpu among the patterns")
        clock, theirs = self._gauge("gpu.sm_clock_hz"), self.smi.get("clocks.sm")
        if clock and theirs and abs(clock / 1e6 - theirs) > _CLOCK_SLACK * theirs:
            found.append(f"SM clock: nvidia-smi {theirs:.0f} MHz, the window {clock / 1e6:.0f} MHz")
        return found

    def lines(self) -> list[str]:
        return [*self._rank_lines(), *self._share_lines(), *self._smi_lines(), *self._call_lines(), *self._note_lines()]

    def _rank_lines(self) -> list[str]:
        lines = [f"ranks found                       {len(self._ranks)} of {len(self.pids)}"]
        for row in self._ranks:
            rank = int(row["rank"])
            steps = [step for step in self.tables["steps"] if step["rank"] == rank]
            launches, waited = self._counter("gpu.launches", rank), self._counter("gpu.wait_s", rank)
            seen = ", ".join(
                f"{name} {1e3 * _mean([step[name + '_s'] for step in steps]):.1f} ms" for name in ("own", "wait")
            )
            told = next(
                f"step {1e3 * one.step_s[one.ranks.index(rank)]:.1f} ms, computing {1e3 * one.compute_s[one.ranks.index(rank)]:.1f} ms"
                for one in self.accounts
                if rank in one.ranks
            )
            lines += [
                f"  rank {rank}: GPUs {', '.join(row['gpus']) or 'none'}; stacks {row['samples']} ({row['stack_source']}), "
                f"not walked {row['failed_samples']}; lost events {self._lost_events}",
                f"    seen   {len(steps)} steps of {1e3 * _mean([step['seconds'] for step in steps]):.1f} ms, {seen}",
                f"    job    {told}",
                f"    launches {_shown(launches)}, waiting for the GPU {_shown(waited)} s",
            ]
        return lines

    def _share_lines(self) -> list[str]:
        """Shares of time by device, those of the window as the mean of its ranks."""
        lines, seconds = (
            ["share of the window              computing   collective/exchange   idle"],
            self.manifest["seconds"],
        )
        for one in self.accounts:
            who = f"ranks {','.join(map(str, one.ranks))}"
            shown = f"{one.computing:>9.3f}{one.exchanging:>15.3f}{one.idle:>15.3f}"
            lines.append(f"  {who}: the job's account   {shown}")
            seen = []
            for name in ("compute", "collective", "idle"):
                values = [self._counter(f"gpu.{name}_s", rank) for rank in one.ranks]
                told = [value for value in values if value is not None]
                seen.append(f"{_mean(told) / seconds:.3f}" if told else "none")
            lines.append(f"  {who}: the window          {seen[0]:>9}{seen[1]:>15}{seen[2]:>15}")
        if self.backend == "gloo":
            lines.append(
                "  (over gloo no kernel runs while gradients are exchanged: the GPU's idle = exchange + idle of the job)"
            )
        gpu = [row for row in self.tables["patterns"] if row["kind"] == "gpu"]
        for row in gpu:
            lines.append(
                f"  pattern gpu '{row['name']}' of rank {row['rank']}: beta {row['beta']:.3f}, mu {_shown(row['mu'])}, "
                f"sigma {_shown(row['sigma'])}"
            )
        kinds = sorted(
            {
                f"{row['kind']} {row['name']}"
                for row in self.tables["patterns"]
                if row["kind"] in ("memory", "collective")
            }
        )
        return [
            *lines,
            f"  patterns of kind gpu: {len(gpu) or 'none'}; copies and collectives: {', '.join(kinds) or 'none'}",
        ]

    def _smi_lines(self) -> list[str]:
        pairs = (("clocks.sm", "gpu.sm_clock_hz", 1e-6), ("power.draw", "gpu.power_w", 1), ("temperature.gpu", "gpu.temperature_c", 1),
                 ("utilization.gpu", "gpu.kernel_active", 100))  # fmt: skip
        lines = []
        for theirs, ours, factor in pairs:
            value = self._gauge(ours)
            mine = _shown(None if value is None else value * factor)
            lines.append(f"  {theirs:18} nvidia-smi {_shown(self.smi.get(theirs)):>8}   window {mine:>8}")
        dmon = ", ".join(f"{name[5:]} {value:.1f}" for name, value in self.smi.items() if name.startswith("dmon "))
        levels = ", ".join(
            f"{name} {_shown(self._gauge(f'gpu.{name}'))}"
            for name in ("sm_active", "tensor_active", "sm_active_computing")
        )
        return [*lines, f"  nvidia-smi dmon: {dmon or 'nothing'}", f"  window: {levels}"] if self.on_gpu else []

    def _call_lines(self) -> list[str]:
        """Rows by library: those it exports, and of these the ones whose programs the kernel ran, for whichever process."""
        ran = {cost["program"]: cost["run_count"] for cost in self.manifest["costs"]}
        lines = []
        for one in self.exported:
            hit = [f"{name} {ran[f'rs_enter_{at}']}" for at, name in one.rows if f"rs_enter_{at}" in ran]
            found = f"{len(one.rows)} of {len(one.rows) + len(one.absent)} rows found"
            lines.append(f"{one.library}: {found}; absent: {', '.join(one.absent) or 'none'}")
            lines.append(f"  hit: {', '.join(hit) or 'none'}")
        return lines

    def _note_lines(self) -> list[str]:
        losses = [
            f"{loss['source']} {loss['name']} {loss['count']}" for loss in self.manifest["losses"] if loss["count"]
        ]
        return [f"note: {note}" for note in self.manifest["notes"]] + [f"lost: {text}" for text in losses]


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
