"""Who holds up every fork of this host: a user whose own file server holds his memory, while a file that he maps gets a probe."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from campaignkit.chaos import users
from campaignkit.chaos.users import Holder
from rankscope.probes.bpf import loader, warden
from rankscope.probes.bpf.functions import uprobes
from rankscope.probes.bpf.functions.uprobes import TRACE_UPROBE_MULTI
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow

TABLE = (CallRow("librslab", "rs_lab_call", "call", "wait", 1),)
# A guard of the host sees it after a second, and has to see the same thread wait three times. The holder ends by himself after 20.
ENDED_S = (warden.LOOKS + 6) * warden.LOOKS_EVERY_S
LIBRARY = "int rs_lab_call(int n) { return n + 3; }\n"


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A folder with the library, which other users may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", folder / "librslab.so", "-xc", "-"], input=LIBRARY, text=True, check=True
        )
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def holder(folder: Path) -> Iterator[Holder]:
    """One that maps the library of that folder and does not hold yet."""
    with users.holder(folder, folder / "librslab.so") as one:
        yield one


def place_of_function(library: Path) -> int:
    """Where the function to probe is."""
    return users.offset_of(library, "rs_lab_call")


def unguarded_probe_s() -> float:
    """How long a probe that nothing in this process guards is put in while somebody holds his memory, and forks wait; then one is made."""
    module = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": 64}, generated=programs(TABLE))
    try:
        with place() as folder, holder(folder) as one:
            library = folder / "librslab.so"
            offset, program = place_of_function(library), module.program("rs_enter_0", attach_type=TRACE_UPROBE_MULTI)
            one.hold()
            began_s = time.monotonic()
            links = uprobes.attach_many(program.fd, library, [offset])
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            took_s = time.monotonic() - began_s
            module.held.update(links)
            module.release(links)
            return took_s
    finally:
        module.close()
