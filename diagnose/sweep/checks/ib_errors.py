"""InfiniBand and RoCE ports do not lose or damage packets.

Reads counters and hw_counters under /sys/class/infiniband; judged by growth per hour since the last sweep, and reported for
`hours`. Symbol errors: the InfiniBand specification's bit error rate allows about 120 an hour at most; receive errors, link
integrity and buffer overruns should be none; retransmissions (out_of_sequence, local_ack_timeout_err, packet_seq_err) tell of
loss on the way.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.ports.reader import read_ports

ID = "ib.errors"
SETTINGS = {"symbols_per_hour": 120.0, "errors_per_hour": 10.0, "retransmissions_per_hour": 10000.0, "hours": 24.0}
_GROUPS = (
    ("symbols_per_hour", "symbol errors", ("symbol_error",)),
    ("errors_per_hour", "errors", ("port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
     "port_rcv_remote_physical_errors", "rx_icrc_encapsulated", "link_error_recovery")),
    ("retransmissions_per_hour", "retransmissions", ("out_of_sequence", "local_ack_timeout_err", "packet_seq_err")),
)  # fmt: skip


def run(context: Context) -> Iterator[Finding]:
    """Yield for each port a warning per kind of error above its hourly limit; ok if there is none.

    Raises NotApplicable without InfiniBand or RoCE.
    """
    ports = context.shared.get("ib", lambda: read_ports(context.root, interfaces=False))
    if not ports:
        raise NotApplicable("no InfiniBand or RoCE device")
    for port in ports:
        read = f"/sys/class/infiniband/{port.device}/ports/{port.port}/*counters"
        wrong = False
        for setting, words, names in _GROUPS:
            rate = 0.0
            for name in names:
                value = port.count(name)
                if value is not None:
                    rate += context.grown(f"{port.number}.{name}", value).per_hour
            if rate > context.number(setting):
                wrong = True
                yield context.warning(
                    read, round(rate, 1), unit=f"{words}/h", instance=port.number,
                    expected=f"at most {context.number(setting):g} {words} an hour",
                    why="packets are damaged, lost or sent again",
                    action="Check cable and transceiver (mlxlink -d DEVICE); compare with the switch's counters.",
                    lasts=True,
                )  # fmt: skip
        if not wrong:
            yield context.ok(read, 0.0, instance=port.number, unit="errors/h beyond the limits")
