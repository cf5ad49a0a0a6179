"""The hook: a program that gets the JSON of a critical sweep on its standard input, to drain the host, say.

It gets `RANKSCOPE_HOST` and `RANKSCOPE_STATE` besides. A hook that fails or hangs is said in a note; it never changes the result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

_OUTPUT_CAP = 200


def run_hook(program: str, content: dict[str, Any], timeout_s: float) -> str:
    """Runs the program in a session of its own; a note if it failed, '' if not. Never raises."""
    environment = {**os.environ, "RANKSCOPE_HOST": content["host"], "RANKSCOPE_STATE": content["summary"]["state"]}
    try:
        child = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"hook {program}: {error.strerror}"
    try:
        _, errors = child.communicate(json.dumps(content).encode(), timeout_s)
    except subprocess.TimeoutExpired:
        # The whole session is killed: of a shell alone the children would live on.
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stderr is not None:
            child.stderr.close()
        return f"hook {program}: did not end within {timeout_s:g} s; it was killed"
    except OSError as error:
        child.kill()
        child.wait()
        return f"hook {program}: {error.strerror}"
    if child.returncode:
        said = errors.decode("utf-8", "replace").strip()[-_OUTPUT_CAP:]
        return f"hook {program}: exit code {child.returncode}{': ' + said if said else ''}"
    return ""
