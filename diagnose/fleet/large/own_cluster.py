"""Ray and Dask where no cluster is named: on this host, for us alone, and neither takes modules from the folder that is stood in.

Both run whatever Python reaches them, as who started them. So nothing of ours listens that asks nobody who he is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rankscope.probes.errors import EXIT_MISSING, RankscopeError
from rankscope.probes.scratch import scratch

_NO_PAGE = "127.0.0.1:0"  # None is port 8787 of every address


class EngineOpen(RankscopeError):
    """It would run, as root, what any user of this host sends it."""

    help = "Say which cluster (RAY_ADDRESS), take a newer Ray (2.52 or later), or --engine local."
    exit_code = EXIT_MISSING


@contextmanager
def dask_options(workers: int) -> Iterator[dict[str, Any]]:
    """Threads of this process, that no network reaches: without certificates a scheduler of Dask serves who connects. Most of the work is
    pyarrow's and numpy's, and those let others run. Its pages say nothing, and what it imports from is no folder that all users share."""
    import dask

    quiet: dict[str, list[str]] = {f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")}
    with short_scratch() as folder, dask.config.set({"temporary-directory": folder, **quiet}):
        yield {
            "n_workers": 1, "threads_per_worker": workers, "processes": False, "protocol": "inproc://",
            "dashboard_address": _NO_PAGE, "worker_dashboard_address": _NO_PAGE, "local_directory": folder,
        }  # fmt: skip


@contextmanager
def short_scratch() -> Iterator[str]:
    """A folder that is ours; the name is short, as Ray's sockets lie in it, and those have 107 characters."""
    with scratch(os.environ.get("RAY_TMPDIR") or "/tmp", "rs-") as folder:
        yield str(folder.path)


def start_ray(workers: int, folder: str) -> None:
    """The cluster of RAY_ADDRESS, else one of our own. EngineOpen where that would be anybody's."""
    import ray

    address = os.environ.get("RAY_ADDRESS")
    said: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not (address or "").startswith("ray://"):  # a client's job has no folder
        said["job_config"] = _without_folder()
    if address:
        ray.init(address=address, **said)
        return
    if not _asks_who_comes() and os.geteuid() == 0:
        raise EngineOpen("this Ray asks nobody who he is: what any user sends it would be run by root")
    # local: without it a cluster is sought first, by a file in /tmp that anybody may have put there
    ray.init(address="local", num_cpus=workers, include_dashboard=False, _temp_dir=folder, **said)


def _asks_who_comes() -> bool:
    """Whether Ray serves only who has its token, which it is given here. False for one that knows none."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        from ray._raylet import AuthenticationMode, Config, get_authentication_mode
    except ImportError:
        return False
    Config.initialize("")  # it read the environment as it was loaded
    return bool(get_authentication_mode() == AuthenticationMode.TOKEN)


def _without_folder() -> Any:
    """Ray puts the current folder before Python's own on every worker, but where a job says that it brings a folder along."""
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]  # Ray has no types here
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return Job()
