"""`rankscope export`: convert windows to formats of other tools."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankscope.diagnose.face.cli.output import free_place, patience, print_json, write_result
from rankscope.diagnose.face.cli.shell import dash
from rankscope.diagnose.face.export.formats import FORMATS, OF_STEPS
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import EXIT_HEALTHY, BadData, UsageError


def run(folders: tuple[Path | str, ...], job: str | None, wanted: str, place: Path, as_json: bool) -> int:
    """Write one job of the windows into a file (`-`: standard output), and return exit code 0."""
    if wanted not in FORMATS:
        raise UsageError(f"--to {clean(wanted, 40)!r} is none of {', '.join(FORMATS)}")
    dash.sensible(place, as_json, binary=wanted == "pprof")
    free_place(place)
    with patience("reading windows") as say:
        fleet = gather(load(folders).windows, job)
        say(f"making {wanted}")
        content = FORMATS[wanted](fleet)
        if not content or (wanted in OF_STEPS and not np.isfinite(fleet.steps.seconds).any()):
            seen = "step" if wanted in OF_STEPS else "function"
            raise BadData(f"no {seen} was seen in these windows: there is nothing that {wanted} could hold")
        write_result(place, content)
    if as_json:
        print_json({"file": str(place), "format": wanted, "ranks": len(fleet.ranks), "bytes": len(content)})
        return EXIT_HEALTHY
    where = "on standard output" if place == dash.STDOUT else f"in {clean(str(place), 4096)}"
    dash.remark(f"{wanted} of {len(fleet.ranks)} ranks is {where}", place)
    return EXIT_HEALTHY
