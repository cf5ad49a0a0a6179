"""Where the work on a large fleet is done: this host's processors, a Ray cluster or a Dask cluster, each a `concurrent.futures.Executor`.

    local    as many processes as there are processors for us
    ray      the cluster of RAY_ADDRESS, else one on this host             (rankscope[ray])
    dask     the scheduler of DASK_SCHEDULER_ADDRESS, else threads of ours  (rankscope[dask])

Workers of a cluster need rankscope in their environment, and must reach the store by the same URI.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from threading import Event, Thread
from typing import Any

from rankscope.diagnose.fleet.large.isolated import isolate_children
from rankscope.diagnose.fleet.large.own_cluster import dask_options, short_scratch, start_ray
from rankscope.diagnose.no_pandas import spare_pandas
from rankscope.probes.errors import EXIT_MISSING, RankscopeError, UsageError

ENGINES = ("local", "ray", "dask")


class EngineMissing(RankscopeError):
    """An engine that was asked for is not installed."""

    help = "Install it where rankscope is (pip install 'rankscope[ray]' or 'rankscope[dask]'), or use --engine local."
    exit_code = EXIT_MISSING


class EngineFailed(RankscopeError):
    """An engine died, or cannot be reached. Windows are only read: nothing is lost."""

    help = "Run the command again, or with --engine local."
    exit_code = EXIT_MISSING


def check(engine: str) -> None:
    """UsageError where there is no such engine, EngineMissing where it is not installed."""
    if engine not in ENGINES:
        raise UsageError(f"--engine must be one of {', '.join(ENGINES)}")
    try:
        if engine == "ray":
            from ray import init  # noqa: F401  # a folder of that name can be imported, too
        if engine == "dask":
            from distributed import Client  # noqa: F401
    except ImportError:
        raise EngineMissing(f"--engine {engine}: {engine} is not installed") from None


@contextmanager
def started(engine: str, workers: int | None = None) -> Iterator[Executor]:
    """The engine, ready to work; `workers`: so many of this host's, where it is not a cluster's. EngineFailed where it breaks."""
    check(engine)
    begin = {"local": _local, "ray": _ray, "dask": _dask}[engine]
    try:
        with begin(workers or len(os.sched_getaffinity(0))) as pool:
            yield pool
    except (RankscopeError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("ray", "distributed", "dask", "concurrent", "builtins"):
            raise
        if isinstance(error, (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)):
            raise  # of ours: not the engine's
        line = (str(error).splitlines() or [""])[0][:160]
        raise EngineFailed(f"the engine {engine} failed: {type(error).__name__} {line}".rstrip()) from error


def of_arrays(pool: Executor) -> Executor:
    """Where large arrays that this process holds are worked on: threads, to which nothing need be sent, as many as the engine has workers
    of this host; with a cluster's, as many as it has processors for us. Dask's workers."""
    return pool.threads if isinstance(pool, (_Processors, _RayExecutor)) else pool


def let_go(pool: Executor) -> None:
    """Nothing more is asked of it: its processes end beside what is done here. `started` waits until they have."""
    if isinstance(pool, (_Processors, _RayExecutor)):
        pool.let_go()


class _Processors(ProcessPoolExecutor):
    """This host's processors: processes read windows, and threads work on arrays, where numpy lets others run."""

    def __init__(self, workers: int) -> None:
        isolate_children()
        # spawn: the file systems of pyarrow do not survive a fork
        super().__init__(workers, mp_context=get_context("spawn"), initializer=spare_pandas)
        self.threads = ThreadPoolExecutor(workers)
        self._ending: Thread | None = None

    def let_go(self) -> None:
        """Its processes end meanwhile."""
        self._ending = Thread(target=self.shutdown)
        self._ending.start()

    def end(self) -> None:
        """They have ended, whatever they were asked for."""
        if self._ending is not None:
            self._ending.join()
        self.shutdown(cancel_futures=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.threads.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def _local(workers: int) -> Iterator[Executor]:
    pool = _Processors(workers)
    try:
        yield pool
    finally:
        pool.end()


@contextmanager
def _dask(workers: int) -> Iterator[Executor]:
    from distributed import Client

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    with ExitStack() as open_now:
        options = {} if address else open_now.enter_context(dask_options(workers))
        client = open_now.enter_context(Client(address, set_as_default=False, timeout="30s", **options))
        yield open_now.enter_context(client.get_executor())


@contextmanager
def beginning(engine: str, workers: int | None = None) -> Iterator[None]:
    """An engine that takes seconds to start does so beside what is done here and in `started`, inside of this, until it is asked for
    something: what fails is said then. EngineMissing."""
    check(engine)
    if engine != "ray":
        yield
        return
    with _begun(workers or len(os.sched_getaffinity(0))) as begun:
        token = _BEGUN.set(begun)
        try:
            yield
        finally:
            _BEGUN.reset(token)


@contextmanager
def _ray(workers: int) -> Iterator[Executor]:
    before = _BEGUN.get()
    with (
        nullcontext(before) if before else _begun(workers) as begun,
        ThreadPoolExecutor(len(os.sched_getaffinity(0)) if os.environ.get("RAY_ADDRESS") else workers) as threads,
    ):
        yield _RayExecutor(begun, threads)


@dataclass(frozen=True, slots=True)
class _Begun:
    """Ray, which is there when the future is done, until nobody needs it."""

    ready: Future[None] = field(default_factory=Future)
    over: Event = field(default_factory=Event)


@contextmanager
def _begun(workers: int) -> Iterator[_Begun]:
    """Ray's processes end with the thread that started them: one that lives as long."""
    begun = _Begun()
    thread = Thread(target=_keep_ray, args=(workers, begun), daemon=True)
    thread.start()
    try:
        yield begun
    finally:
        begun.over.set()
        thread.join()


def _keep_ray(workers: int, begun: _Begun) -> None:
    with ExitStack() as held:
        try:
            folder = held.enter_context(short_scratch())
            import ray

            ours = not ray.is_initialized()
            if ours:
                start_ray(workers, folder)
        except BaseException as error:  # whoever waits for it waits no longer
            begun.ready.set_exception(error)
            return
        begun.ready.set_result(None)
        begun.over.wait()
        if ours:
            ray.shutdown()  # what its workers sent stays where it is, as long as somebody holds it


_BEGUN: ContextVar[_Begun | None] = ContextVar("begun", default=None)


class _RayExecutor(Executor):
    """Ray's tasks as futures, from when it is there. A task whose worker dies is tried again elsewhere, by Ray itself.

    What goes there and comes back is packed here: Ray's own way asks Python about each object, and a group of hosts is a thousand of them.
    Arrays go beside it, as they are.
    """

    def __init__(self, begun: _Begun, threads: ThreadPoolExecutor) -> None:
        self.threads = threads
        self._begun = begun
        self._call: Any = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._call is None:
            self._begun.ready.result()
            import ray

            self._call = ray.remote(_call)
        unpacked: Future[Any] = Future()
        packed: Future[_Packed] = self._call.remote(*_packed((fn, args, kwargs))).future()
        packed.add_done_callback(partial(_unpack, unpacked))
        return unpacked

    def let_go(self) -> None:
        """Its processes end meanwhile."""
        self._begun.over.set()


_Packed = tuple[bytes, Sequence[pickle.PickleBuffer]]  # an object, and the arrays in it


def _packed(what: object) -> _Packed:
    arrays: list[pickle.PickleBuffer] = []
    return pickle.dumps(what, protocol=5, buffer_callback=arrays.append), arrays


def _unpack(to: Future[Any], packed: Future[_Packed]) -> None:
    try:
        data, arrays = packed.result()
        found = pickle.loads(data, buffers=arrays)
    except BaseException as error:
        to.set_exception(error)
    else:
        to.set_result(found)


def _call(data: bytes, arrays: Sequence[pickle.PickleBuffer]) -> _Packed:
    """Runs on a worker, which is this job's alone."""
    spare_pandas()
    fn, args, kwargs = pickle.loads(data, buffers=arrays)
    return _packed(fn(*args, **kwargs))
