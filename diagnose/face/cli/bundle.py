"""`rankscope bundle`: pack windows into one small file without names, for the same verdict
anywhere."""

from __future__ import annotations

from pathlib import Path

from rankscope.diagnose.face.cli.output import free_place, patience, print_json, tell, write_result
from rankscope.diagnose.infer.fleet.sources import load, load_baseline
from rankscope.diagnose.text import clean
from rankscope.observer.window.bundle import pack
from rankscope.observer.window.renamed import Renaming
from rankscope.probes.base.errors import EXIT_HEALTHY


def run(
    folders: tuple[Path | str, ...], baseline: tuple[Path | str, ...], place: Path, keep_names: bool, as_json: bool
) -> int:
    """Write the bundle and return exit code 0. `keep_names`: do not replace names."""
    free_place(place)
    with patience("reading windows") as say:
        windows, earlier = list(load(folders).windows), list(load_baseline(baseline, folders))
        say("packing")
        if not keep_names:
            renaming = Renaming()
            windows, earlier = ([renaming.window(window) for window in each] for each in (windows, earlier))
        content = pack(windows, earlier, keep_names)
        write_result(place, content)
    count = len(windows) + len(earlier)
    if as_json:
        print_json(
            {"file": str(place), "windows": count, "bytes": len(content), "names": "kept" if keep_names else "replaced"}
        )
        return EXIT_HEALTHY
    names = "names as they are" if keep_names else "names replaced"
    tell(f"{clean(str(place), 4096)}: {count} window{'' if count == 1 else 's'}, {len(content) / 1024:.0f} KB, {names}")
    return EXIT_HEALTHY
