"""`rankscope bundle`: pack windows into one small file without names, for the same verdict
anywhere."""

from __future__ import annotations

import json
from pathlib import Path

from rankscope.diagnose.face.cli.output import free_place, patience, print_json, write_result
from rankscope.diagnose.face.cli.shell import dash
from rankscope.diagnose.infer.fleet.sources import load, load_baseline
from rankscope.diagnose.text import clean
from rankscope.observer.window.bundle import pack
from rankscope.observer.window.renamed import Renaming
from rankscope.probes.base.errors import EXIT_HEALTHY, UsageError

KEY_SCHEMA = "rankscope.bundle-key/1"


def run(
    folders: tuple[Path | str, ...], baseline: tuple[Path | str, ...], place: Path, keep_names: bool, as_json: bool,
    key: Path | None = None,
) -> int:  # fmt: skip
    """Write the bundle and return exit code 0. `keep_names`: do not replace names; `key`: a file for its owner with what
    each name stands for. `place` `-`: standard output.
    """
    _sensible(place, keep_names, as_json, key)
    with patience("reading windows") as say:
        windows, earlier = list(load(folders).windows), list(load_baseline(baseline, folders))
        say("packing")
        renaming = Renaming()
        if not keep_names:
            windows, earlier = ([renaming.window(window) for window in each] for each in (windows, earlier))
        content = pack(windows, earlier, keep_names)
        if key is not None:  # first: a bundle without its key could not be read back
            write_result(key, _key_of(renaming))
        write_result(place, content)
    count = len(windows) + len(earlier)
    if as_json:
        print_json(
            {
                "file": str(place), "windows": count, "bytes": len(content), "names": "kept" if keep_names else "replaced",
                "key": None if key is None else str(key),
            }
        )  # fmt: skip
        return EXIT_HEALTHY
    names = "names as they are" if keep_names else "names replaced"
    windows_said = f"{count} window{'' if count == 1 else 's'}, {len(content) / 1024:.0f} KB, {names}"
    dash.remark(f"{clean(str(place), 4096)}: {windows_said}", place)
    if key is not None:
        dash.remark(f"{clean(str(key), 4096)}: what each name stands for; keep it, and pass on the other one", place)
    return EXIT_HEALTHY


def _sensible(place: Path, keep_names: bool, as_json: bool, key: Path | None) -> None:
    """Check options and places. Raises UsageError, OutputFailed."""
    dash.sensible(place, as_json, binary=True)
    free_place(place)
    if key is None:
        return
    if keep_names:
        raise UsageError("--key says what names were replaced by: with --keep-names none is")
    if key.absolute() == place.absolute():
        raise UsageError("--key and --out name one file: the key is not for whoever gets the bundle")
    free_place(key)


def _key_of(renaming: Renaming) -> bytes:
    """Encode what each name in the bundle stands for, as JSON (rankscope.bundle-key/1)."""
    content = {"schema": KEY_SCHEMA, **renaming.key()}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")
