"""Network interfaces do not lose or damage packets.

Reads statistics under /sys/class/net: errors (CRC, carrier, …) and drops as a share of the packets since the last sweep. A
share of errors above 1 in 100,000 slows TCP and RDMA alike; drops at the receiver mean that the host does not keep up.
Fewer than `least` events are never reported, others for `hours`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.interfaces import physical

ID = "net.errors"
SETTINGS = {"errors_per_million": 10.0, "drops_per_million": 10000.0, "least": 10.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per interface: a warning if errors or drops exceed their share of packets, else ok.

    Raises NotApplicable without physical interfaces.
    """
    nics = physical(context)
    if not nics:
        raise NotApplicable("no physical network interface")
    for nic in nics:
        read = f"/sys/class/net/{nic.name}/statistics"
        grown = {name: context.grown(f"{nic.name}.{name}", value).amount for name, value in nic.counters}
        packets = max(1.0, grown["rx_packets"] + grown["tx_packets"])
        errors = grown["rx_errors"] + grown["tx_errors"]
        drops = grown["rx_dropped"] + grown["tx_dropped"]
        least = context.number("least")
        for name, events, limit in (
            ("errors", errors, context.number("errors_per_million")),
            ("drops", drops, context.number("drops_per_million")),
        ):
            share = events / packets * 1e6
            if events >= least and share > limit:
                crc = (
                    f", {grown['rx_crc_errors']:.0f} of them CRC" if name == "errors" and grown["rx_crc_errors"] else ""
                )
                yield context.warning(
                    read, round(share, 1), unit=f"{name}/million", instance=nic.name,
                    expected=f"at most {limit:g} {name} in a million packets",
                    why=f"{events:.0f} {name}{crc} since the last sweep",
                    action="Check cable and transceiver." if name == "errors" else "Raise ring buffers; check who floods it.",
                    lasts=True,
                )  # fmt: skip
                break
        else:
            yield context.ok(read, errors + drops, instance=nic.name, unit="errors and drops")
