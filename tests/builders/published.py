"""Timings that others published, as files for `rankscope diagnose --steps`.

ByteDance-Seed/StragglerAnalysis (Apache-2.0), one row per operation: dp_rank, stage, rank, step, optype, start_ts,
duration, … One row here is one rank, step and operation: `seconds` the sum of the durations, `count` the executions.

compute, optimizer  gpu          gc  python
send, recv, gather, scatter, reduce  collective, waiting included (as the README.md beside the data says)

python tests/builders/published.py straggler-AR.parquet AR.parquet && rankscope diagnose --steps AR.parquet
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COMMUNICATION = "send|recv|gather|scatter|reduce"


def convert(source: Path, target: Path, summed: bool = True, communication_names: str = COMMUNICATION) -> None:
    """Write the operations of `source` as timings; `summed`: one row per rank, step and operation, else one per execution."""
    table = pq.read_table(source, columns=["rank", "step", "stage", "optype", "duration"])
    function = table["optype"].cast(pa.string())
    communication = pc.match_substring_regex(function, communication_names)
    kind = pc.if_else(communication, "collective", pc.if_else(pc.equal(function, "gc"), "python", "gpu"))
    timings = pa.table({
        "rank": table["rank"],
        "step": table["step"],
        "function": function,
        "kind": kind,
        "seconds": table["duration"].cast(pa.float64()),
        "role": pc.binary_join_element_wise("stage", table["stage"].cast(pa.string()), "-"),
        "waits": communication,
    })  # fmt: skip
    if summed:
        keys = ["rank", "step", "function", "kind", "role", "waits"]
        timings = timings.group_by(keys).aggregate([("seconds", "sum"), ("seconds", "count")])
        timings = timings.rename_columns([*keys, "seconds", "count"])
    pq.write_table(timings, target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
