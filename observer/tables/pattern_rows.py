"""Build table rows from patterns, pauses, steps and flows of one rank."""

from __future__ import annotations

import numpy as np

from rankscope.observer.thread.functions import Holder
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.thread.pauses import Pause
from rankscope.observer.thread.step_times import StepTimes
from rankscope.observer.window.rows import FlowRow, PatternRow, PauseRow, StepRow
from rankscope.observer.window.schema import PAUSED_STEPS_MOST
from rankscope.observer.window.stacks import StackTree
from rankscope.probes.base.arrays import Floats
from rankscope.probes.network.flows import FlowSummary

_NOBODY = Holder("", "", 0, "")


def pattern_row(rank: int, thread: str, pattern: MeasuredPattern, stacks: StackTree) -> PatternRow:
    """Build a row of the table `patterns`; its stack is added to `stacks`."""
    function, holder = pattern.function, pattern.function.holder or _NOBODY
    return PatternRow(
        rank=rank,
        thread=thread,
        kind=function.kind,
        name=function.name,
        file=function.file,
        line=function.line,
        detail=function.detail,
        caller=function.caller,
        stack=stacks.add(function.stack),
        holder_name=holder.name,
        holder_file=holder.file,
        holder_line=holder.line,
        holder_thread=holder.thread,
        native=pattern.native,
        beta=pattern.beta,
        mu=pattern.mu,
        sigma=pattern.sigma,
        resource=function.resource,
        count=pattern.count,
        total_s=pattern.total_s,
        p50_s=pattern.p50_s,
        p99_s=pattern.p99_s,
        max_s=pattern.max_s,
        per_step_s=pattern.per_step_s,
        per_step_sd_s=pattern.per_step_sd_s,
        bytes=pattern.bytes,
        growth_s=pattern.growth_s,
        native_share=pattern.native_share,
        kernel_share=pattern.kernel_share,
        kernel_for=pattern.kernel_for,
    )


def pause_row(rank: int, pause: Pause) -> PauseRow:
    """Build a row of the table `pauses`."""
    return PauseRow(
        rank=rank,
        name=pause.function.name,
        file=pause.function.file,
        line=pause.function.line,
        inside=pause.inside,
        more=pause.more,
        count=len(pause.steps),
        total_s=float(pause.seconds.sum()),
        p50_s=float(np.median(pause.seconds)),
        max_s=float(pause.seconds.max()),
        wait_s=pause.wait_s,
        steps=tuple(pause.steps[:PAUSED_STEPS_MOST].tolist()),
    )


def step_rows(rank: int, times: StepTimes, asked_s: Floats) -> list[StepRow]:
    """Build rows of the table `steps`; those with unknown own time are left out.

    `asked_s`: by step, what of its `sync_s` it waited for servers.
    """
    columns = (
        times.start_s,
        times.seconds,
        times.own_s,
        times.wait_s,
        times.io_s,
        times.sched_s,
        times.sync_s,
        asked_s,
    )
    known = np.flatnonzero(np.isfinite(times.own_s)).tolist()
    return [StepRow(rank, index, *(float(column[index]) for column in columns)) for index in known]


def flow_row(rank: int, flow: FlowSummary) -> FlowRow:
    """Build a row of the table `flows`."""
    return FlowRow(
        rank=rank,
        local=flow.local,
        peer=flow.peer,
        interface=flow.interface,
        sent_bytes=flow.sent_bytes,
        received_bytes=flow.received_bytes,
        retransmitted_bytes=flow.retransmitted_bytes,
        busy_s=flow.busy_s,
        rwnd_limited_s=flow.rwnd_limited_s,
        sndbuf_limited_s=flow.sndbuf_limited_s,
        rtt_s=flow.rtt_s,
        min_rtt_s=flow.min_rtt_s,
        delivery_rate_hz=flow.delivery_rate_hz,
        carried_bytes=flow.carried_bytes,
    )
