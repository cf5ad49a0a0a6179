"""Ray and Dask on this host: for us alone, and nothing is imported from the folder that is stood in."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.diagnose.infer.fleet.large import engines

Asked = list[dict[str, Any]]


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A Dask that writes down how it is set, and started."""
    asked: Asked = []

    def client(address: str | None, **options: Any) -> Any:
        asked.append({"address": address, **options})
        return nullcontext(SimpleNamespace(get_executor=nullcontext))

    def config(values: dict[str, Any]) -> Any:
        asked.append(values)
        return nullcontext()

    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=client))
    monkeypatch.setitem(sys.modules, "dask", SimpleNamespace(config=SimpleNamespace(set=config)))
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    return asked


def test_a_dask_of_our_own_is_reached_by_nobody(dask: Asked) -> None:
    with engines.started("dask", 3):
        settings, options = dask
        assert options["address"] is None and options["protocol"] == "inproc://" and options["processes"] is False
        assert options["threads_per_worker"] == 3
        for name in ("dashboard_address", "worker_dashboard_address"):
            assert options[name].startswith("127.0.0.1:")
        folder = Path(settings["temporary-directory"])
        assert folder == Path(options["local_directory"]) and folder.stat().st_mode & 0o777 == 0o700
        assert [settings[f"distributed.{who}.http.routes"] for who in ("scheduler", "worker")] == [[], []]
    assert not folder.exists()


def test_a_scheduler_that_is_named_is_asked_as_it_is(dask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tls://there:8786")
    with engines.started("dask", 3):
        assert dask == [{"address": "tls://there:8786", "set_as_default": False, "timeout": "30s"}]


class JobConfig:
    def _runtime_env_has_working_dir(self) -> bool:
        return False


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A Ray that writes down how it is started, and has tokens."""
    asked: Asked = []
    token = SimpleNamespace(TOKEN="token")
    read: list[str] = []
    inside = SimpleNamespace(
        AuthenticationMode=token,
        Config=SimpleNamespace(initialize=lambda _: read.append(os.environ["RAY_AUTH_MODE"])),
        get_authentication_mode=lambda: read[-1] if read else "disabled",
    )
    made = SimpleNamespace(
        init=lambda **options: asked.append(options), is_initialized=lambda: False, shutdown=lambda: None
    )
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray._raylet", inside)
    monkeypatch.setitem(sys.modules, "ray.job_config", SimpleNamespace(JobConfig=JobConfig))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return asked


def begin() -> None:
    with engines.started("ray", 2) as pool:
        pool._begun.ready.result(10)  # type: ignore[attr-defined]


def test_a_ray_of_our_own_is_sought_nowhere_and_serves_who_has_its_token(ray: Asked) -> None:
    begin()
    (options,) = ray
    assert options["address"] == "local" and options["num_cpus"] == 2
    assert not Path(options["_temp_dir"]).exists() and len(options["_temp_dir"]) < 20
    assert options["job_config"]._runtime_env_has_working_dir()
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64


@pytest.mark.skipif(os.geteuid() != 0, reason="of root's")
@pytest.mark.parametrize("why", ["it knows none", "it is told to ask nobody"])
def test_a_ray_that_asks_nobody_who_he_is_is_not_started_by_root(
    ray: Asked, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it knows none":
        monkeypatch.setitem(sys.modules, "ray._raylet", SimpleNamespace())
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(engines.RankscopeError, match="any user sends it would be run by root"):
        begin()
    assert ray == []


@pytest.mark.parametrize(("address", "in_job"), [("there:6379", True), ("ray://there:10001", False)])
def test_a_cluster_that_is_named_is_used_as_it_is(
    ray: Asked, monkeypatch: pytest.MonkeyPatch, address: str, in_job: bool
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    begin()
    (options,) = ray
    assert options["address"] == address and "num_cpus" not in options and ("job_config" in options) == in_job
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_where_there_is_no_room_for_its_files_nobody_waits_for_ray(ray: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/nonexistent")
    with pytest.raises(engines.EngineFailed, match="FileNotFoundError"), engines.started("ray", 2) as pool:
        pool.submit(os.getpid)
    assert ray == []


PROGRAM = """
import os, sys
from rankscope.diagnose.infer.fleet.large import engines

if __name__ == "__main__":
    with engines.started(sys.argv[1], 1) as pool:
        pool.submit(os.getpid).result()
"""


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_folder_that_is_stood_in_gives_no_module_to_the_processes_that_read(tmp_path: Path, engine: str) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="pip install -e '.[ray]'")
    program, theirs = tmp_path / "ours/program.py", tmp_path / "theirs"
    for folder in (program.parent, theirs):
        folder.mkdir()
    program.write_text(PROGRAM)
    for name in ("multiprocessing", "pickle", "numpy", "pyarrow", "rankscope"):
        (theirs / f"{name}.py").write_text("open('ran', 'a').write(__name__)\nraise ImportError('planted')\n")
    done = subprocess.run(
        [sys.executable, str(program), engine], cwd=theirs, capture_output=True, text=True, check=False
    )
    assert not (theirs / "ran").exists(), (theirs / "ran").read_text()
    assert done.returncode == 0, done.stderr
