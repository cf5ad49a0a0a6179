"""Engines for large fleets, each a `concurrent.futures.Executor`: this host, a Ray or a Dask
cluster.

    local    as many processes as this host has processors for us
    ray      the cluster of RAY_ADDRESS, else one on this host                (rankscope[ray])
    dask     the scheduler of DASK_SCHEDULER_ADDRESS, else threads of our own (rankscope[dask])

Workers of a cluster need rankscope installed, and must reach the store by the same URI."""

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

from rankscope.diagnose.infer.fleet.large.isolated import isolate_children
from rankscope.diagnose.infer.fleet.large.own_cluster import dask_options, short_scratch, start_ray
from rankscope.diagnose.no_pandas import spare_pandas
from rankscope.probes.base.errors import EXIT_MISSING, RankscopeError, UsageError

ENGINES = ("local", "ray", "dask")


class EngineMissing(RankscopeError):
    """The requested engine is not installed."""

    help = "Install it where rankscope is (pip install 'rankscope[ray]' or 'rankscope[dask]'), or use --engine local."
    exit_code = EXIT_MISSING


class EngineFailed(RankscopeError):
    """An engine died or cannot be reached. Windows are only read, so nothing is lost."""

    help = "Run the command again, or with --engine local."
    exit_code = EXIT_MISSING


def check(engine: str) -> None:
    """Raise UsageError if the engine's name is unknown, EngineMissing if it is not installed."""
    if engine not in ENGINES:
        raise UsageError(f"--engine must be one of {', '.join(ENGINES)}")
    try:
        if engine == "ray":
            from ray import init  # noqa: F401  # importing `ray` alone would accept any folder of that name
        if engine == "dask":
            from distributed import Client  # noqa: F401
    except ImportError:
        raise EngineMissing(f"--engine {engine}: {engine} is not installed") from None


@contextmanager
def started(engine: str, workers: int | None = None) -> Iterator[Executor]:
    """Start the engine and yield its executor. Raises EngineFailed if it breaks.

    `workers`: processes or threads on this host; ignored for a cluster.
    """
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
            raise  # an error of our own code
        line = (str(error).splitlines() or [""])[0][:160]
        raise EngineFailed(f"the engine {engine} failed: {type(error).__name__} {line}".rstrip()) from error


def of_arrays(pool: Executor) -> Executor:
    """Return an executor for work on large arrays: threads of this process, which need no copies.

    As many as workers, or with a cluster of Ray as processors available here. Dask's own workers
    serve as they are.
    """
    return pool.threads if isinstance(pool, (_Processors, _RayExecutor)) else pool


def let_go(pool: Executor) -> None:
    """Release the executor: its processes end in the background; `started` waits for them."""
    if isinstance(pool, (_Processors, _RayExecutor)):
        pool.let_go()


class _Processors(ProcessPoolExecutor):
    """Executor of this host: processes read windows.

    Threads work on arrays, where numpy releases the GIL.
    """

    def __init__(self, workers: int) -> None:
        isolate_children()
        # spawn: the file systems of pyarrow do not survive a fork
        super().__init__(workers, mp_context=get_context("spawn"), initializer=spare_pandas)
        self.threads = ThreadPoolExecutor(workers)
        self._ending: Thread | None = None

    def let_go(self) -> None:
        """Start shutting down in the background."""
        self._ending = Thread(target=self.shutdown)
        self._ending.start()

    def end(self) -> None:
        """Shut down, cancel what is pending, and wait."""
        if self._ending is not None:
            self._ending.join()
        self.shutdown(cancel_futures=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down the threads and the processes."""
        self.threads.shutdown(wait, cancel_futures=cancel_futures)
        super().shutdown(wait, cancel_futures=cancel_futures)


@contextmanager
def _local(workers: int) -> Iterator[Executor]:
    """Yield an executor of `workers` processes on this host; shut it down at the end of the block."""
    pool = _Processors(workers)
    try:
        yield pool
    finally:
        pool.end()


@contextmanager
def _dask(workers: int) -> Iterator[Executor]:
    """Yield Dask's executor: the cluster of DASK_SCHEDULER_ADDRESS, else `workers` threads of this process."""
    from distributed import Client

    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    with ExitStack() as open_now:
        options = {} if address else open_now.enter_context(dask_options(workers))
        client = open_now.enter_context(Client(address, set_as_default=False, timeout="30s", **options))
        yield open_now.enter_context(client.get_executor())


@contextmanager
def beginning(engine: str, workers: int | None = None) -> Iterator[None]:
    """Start a slow engine (Ray) in the background for a `started` inside this block.

    Raises EngineMissing. Errors of the start are raised at the first use.
    """
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
    """Yield Ray's executor, using a Ray that `beginning` has started, if any."""
    before = _BEGUN.get()
    with (
        nullcontext(before) if before else _begun(workers) as begun,
        ThreadPoolExecutor(len(os.sched_getaffinity(0)) if os.environ.get("RAY_ADDRESS") else workers) as threads,
    ):
        yield _RayExecutor(begun, threads)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A starting Ray: `ready` is done when it runs (or failed), `over` is set when it may stop."""

    ready: Future[None] = field(default_factory=Future)
    over: Event = field(default_factory=Event)


@contextmanager
def _begun(workers: int) -> Iterator[_Begun]:
    """Run Ray in the background while this block runs; yields at once, before it is ready.

    From a thread that lives as long as the block, since Ray's processes end with their thread.
    """
    begun = _Begun()
    thread = Thread(target=_keep_ray, args=(workers, begun), daemon=True)
    thread.start()
    try:
        yield begun
    finally:
        begun.over.set()
        thread.join()


def _keep_ray(workers: int, begun: _Begun) -> None:
    """Start Ray and keep it until `begun.over` is set; for the thread of `_begun`.

    Sets `begun.ready`, to the error if the start fails. A Ray that runs already is used, and not
    stopped.
    """
    with ExitStack() as held:
        try:
            folder = held.enter_context(short_scratch())
            import ray

            ours = not ray.is_initialized()
            if ours:
                start_ray(workers, folder)
        except BaseException as error:  # wake up whoever waits for it
            begun.ready.set_exception(error)
            return
        begun.ready.set_result(None)
        begun.over.wait()
        if ours:
            ray.shutdown()  # results that are referenced stay valid


_BEGUN: ContextVar[_Begun | None] = ContextVar("begun", default=None)


class _RayExecutor(Executor):
    """Ray tasks as futures, once Ray runs. Ray itself retries a task whose worker dies.

    Arguments and results are pickled here: Ray's own way calls Python per object, and a group of
    hosts has a thousand. Arrays are passed out of band, uncopied.
    """

    def __init__(self, begun: _Begun, threads: ThreadPoolExecutor) -> None:
        self.threads = threads
        self._begun = begun
        self._call: Any = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a call on the cluster; the first one waits until Ray runs, and raises the error of its start."""
        if self._call is None:
            self._begun.ready.result()
            import ray

            self._call = ray.remote(_call)
        unpacked: Future[Any] = Future()
        packed: Future[_Packed] = self._call.remote(*_packed((fn, args, kwargs))).future()
        packed.add_done_callback(partial(_unpack, unpacked))
        return unpacked

    def let_go(self) -> None:
        """Let Ray's processes end in the background."""
        self._begun.over.set()


_Packed = tuple[bytes, Sequence[pickle.PickleBuffer]]  # a pickled object and its arrays


def _packed(what: object) -> _Packed:
    """Pickle an object: its bytes, and its arrays out of band, uncopied."""
    arrays: list[pickle.PickleBuffer] = []
    return pickle.dumps(what, protocol=5, buffer_callback=arrays.append), arrays


def _unpack(to: Future[Any], packed: Future[_Packed]) -> None:
    """Set the future `to` to the unpickled result of `packed`, or to its error."""
    try:
        data, arrays = packed.result()
        found = pickle.loads(data, buffers=arrays)
    except BaseException as error:
        to.set_exception(error)
    else:
        to.set_result(found)


def _call(data: bytes, arrays: Sequence[pickle.PickleBuffer]) -> _Packed:
    """Run a packed call on a worker, which serves this job alone."""
    spare_pandas()
    fn, args, kwargs = pickle.loads(data, buffers=arrays)
    return _packed(fn(*args, **kwargs))
