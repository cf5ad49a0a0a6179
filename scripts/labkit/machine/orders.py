"""What the lab tells a running rank: a control file, which the job's script reads between steps."""

from __future__ import annotations

import json
from pathlib import Path


def write_orders(control_file: Path, orders: dict[str, object] | None) -> None:
    """In one piece: a rank reads all of it or what was there before. None: no orders."""
    if orders is None:
        control_file.unlink(missing_ok=True)
        return
    draft = control_file.with_suffix(".draft")
    draft.write_text(json.dumps(orders))
    draft.rename(control_file)
