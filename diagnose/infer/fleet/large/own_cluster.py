"""Start Ray or Dask on this host where no cluster is named, reachable by this user alone.

Both run any Python that reaches them with the rights of their owner. So nothing we start listens
without authentication, and neither imports modules from the current folder.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rankscope.probes.base.errors import EXIT_MISSING, RankscopeError
from rankscope.probes.base.scratch import scratch

_NO_PAGE = "127.0.0.1:0"  # None would mean port 8787 on every address


class EngineOpen(RankscopeError):
    """The engine would run, as root, what any user of this host sends it."""

    help = "Say which cluster (RAY_ADDRESS), take a newer Ray (2.52 or later), or --engine local."
    exit_code = EXIT_MISSING


@contextmanager
def dask_options(workers: int) -> Iterator[dict[str, Any]]:
    """Options for a Dask of threads in this process, which no network reaches.

    Without certificates a Dask scheduler serves anybody who connects. Most work is pyarrow's and
    numpy's, which release the GIL. Its web pages are off, and its folder is private, since it
    imports from there.
    """
    import dask

    quiet: dict[str, list[str]] = {f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")}
    with short_scratch() as folder, dask.config.set({"temporary-directory": folder, **quiet}):
        yield {
            "n_workers": 1, "threads_per_worker": workers, "processes": False, "protocol": "inproc://",
            "dashboard_address": _NO_PAGE, "worker_dashboard_address": _NO_PAGE, "local_directory": folder,
        }  # fmt: skip


@contextmanager
def short_scratch() -> Iterator[str]:
    """Make a private folder with a short name for Ray's sockets, whose paths have at most 107
    characters."""
    with scratch(os.environ.get("RAY_TMPDIR") or "/tmp", "rs-") as folder:
        yield str(folder.path)


def start_ray(workers: int, folder: str) -> None:
    """Connect to the cluster of RAY_ADDRESS, else start our own.

    EngineOpen if others could use ours as root.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS")
    said: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if not (address or "").startswith("ray://"):  # a Ray client has no job folder
        said["job_config"] = _without_folder()
    if address:
        ray.init(address=address, **said)
        return
    if not _asks_who_comes() and os.geteuid() == 0:
        raise EngineOpen("this Ray asks nobody who he is: what any user sends it would be run by root")
    # local: otherwise Ray first looks for a cluster by a file in /tmp that anybody may have put
    # there
    ray.init(address="local", num_cpus=workers, include_dashboard=False, _temp_dir=folder, **said)


def _asks_who_comes() -> bool:
    """Whether Ray serves only clients with its token, which is set here.

    False if this Ray knows no tokens.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        from ray._raylet import AuthenticationMode, Config, get_authentication_mode
    except ImportError:
        return False
    Config.initialize("")  # reload: it read the environment at import
    return bool(get_authentication_mode() == AuthenticationMode.TOKEN)


def _without_folder() -> Any:
    """A job configuration that keeps Ray from putting the current folder first in sys.path of
    workers.

    Ray does not do so for jobs that claim to bring a folder along."""
    from ray.job_config import JobConfig

    class Job(JobConfig):  # type: ignore[misc]  # Ray has no types here
        def _runtime_env_has_working_dir(self) -> bool:
            """Return True, so that Ray does not put the current folder first in sys.path."""
            return True

    return Job()
