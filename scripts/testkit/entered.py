"""Which functions of a clone a process enters: set as bytes of a file that all processes of a test share, however little they may do.

In: beside this file `entered.json`, the functions as [file, name], and `entered.marks`, a byte for each. As sitecustomize.py of a clone
(mutation.py) it watches every interpreter that is started there, but for those that ask for none (-I, -S). Standard library alone.
"""

from __future__ import annotations

import json
import mmap
import sys
import threading
from pathlib import Path
from types import FrameType


def watch(folder: Path) -> mmap.mmap:
    """Begin to watch this thread, and what it starts; the bytes. OSError."""
    functions = json.loads((folder / "entered.json").read_text())
    places = {(file, name): place for place, (file, name) in enumerate(functions)}
    with (folder / "entered.marks").open("r+b") as file:
        marks = mmap.mmap(file.fileno(), len(functions))

    def enter(frame: FrameType, _event: str, _argument: object) -> None:
        place = places.get((frame.f_code.co_filename, frame.f_code.co_name))
        if place is not None:
            marks[place] = 1

    threading.settrace(enter)
    sys.settrace(enter)
    return marks


if __name__ == "sitecustomize" and Path(__file__).with_name("entered.marks").exists():
    watch(Path(__file__).parent)
