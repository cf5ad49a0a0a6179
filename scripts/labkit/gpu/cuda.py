"""Just enough of the CUDA runtime and of NCCL for a training job: ctypes in the place that torch has elsewhere."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_double, c_float, c_int, c_size_t, c_uint, c_void_p

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
_NON_BLOCKING = 1
_EVENT_BLOCKING_SYNC = 1
UNIQUE_ID_BYTES = 128
FLOAT32, SUM = 7, 0


class CudaError(RuntimeError):
    """A call of the runtime or of NCCL failed."""


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * UNIQUE_ID_BYTES)]


_runtime = ctypes.CDLL("libcudart.so.12")
_nccl = ctypes.CDLL("libnccl.so.2")
_kernels = ctypes.CDLL("libjobkernels.so")
_runtime.cudaGetErrorString.restype = ctypes.c_char_p
_nccl.ncclGetErrorString.restype = ctypes.c_char_p
_runtime.cudaMemcpyAsync.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_void_p)
_runtime.cudaMalloc.argtypes = (POINTER(c_void_p), c_size_t)
_runtime.cudaMallocHost.argtypes = (POINTER(c_void_p), c_size_t)
_runtime.cudaStreamCreateWithFlags.argtypes = (POINTER(c_void_p), c_uint)
_runtime.cudaStreamSynchronize.argtypes = (c_void_p,)
_runtime.cudaStreamWaitEvent.argtypes = (c_void_p, c_void_p, c_uint)
_runtime.cudaEventCreateWithFlags.argtypes = (POINTER(c_void_p), c_uint)
_runtime.cudaEventRecord.argtypes = (c_void_p, c_void_p)
_runtime.cudaEventElapsedTime.argtypes = (POINTER(c_float), c_void_p, c_void_p)
_nccl.ncclCommInitRank.argtypes = (POINTER(c_void_p), c_int, _UniqueId, c_int)
_nccl.ncclAllReduce.argtypes = (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p)
_nccl.ncclCommDestroy.argtypes = (c_void_p,)


def _check(status: int) -> None:
    if status:
        raise CudaError(f"CUDA error {status}: {_runtime.cudaGetErrorString(status).decode()}")


def _check_nccl(status: int) -> None:
    if status:
        raise CudaError(f"NCCL error {status}: {_nccl.ncclGetErrorString(status).decode()}")


def use_device(index: int) -> None:
    """The device of this thread."""
    _check(_runtime.cudaSetDevice(index))


def device_memory(size_bytes: int) -> int:
    place = c_void_p()
    _check(_runtime.cudaMalloc(byref(place), size_bytes))
    return int(place.value or 0)


def pinned_memory(size_bytes: int) -> int:
    place = c_void_p()
    _check(_runtime.cudaMallocHost(byref(place), size_bytes))
    return int(place.value or 0)


class Event:
    def __init__(self) -> None:
        self.handle = c_void_p()
        _check(_runtime.cudaEventCreateWithFlags(byref(self.handle), _EVENT_BLOCKING_SYNC))

    def seconds_since(self, earlier: Event) -> float:
        """Time between two events that have both happened."""
        found = c_float()
        _check(_runtime.cudaEventElapsedTime(byref(found), earlier.handle, self.handle))
        return found.value / 1e3


class Stream:
    def __init__(self) -> None:
        self.handle = c_void_p()
        _check(_runtime.cudaStreamCreateWithFlags(byref(self.handle), _NON_BLOCKING))

    def record(self, event: Event) -> None:
        _check(_runtime.cudaEventRecord(event.handle, self.handle))

    def wait_for(self, event: Event) -> None:
        _check(_runtime.cudaStreamWaitEvent(self.handle, event.handle, 0))

    def copy(self, to: int, source: int, size_bytes: int, kind: int) -> None:
        _check(_runtime.cudaMemcpyAsync(to, source, size_bytes, kind, self.handle))

    def synchronize(self) -> None:
        _check(_runtime.cudaStreamSynchronize(self.handle))


class Kernel:
    """A kernel of libjobkernels.so (sim/kernels.c), whose one argument is its work: seconds on an idle GPU at full clock."""

    def __init__(self, name: str) -> None:
        self._launch = _kernels[f"host_{name}"]
        self._launch.argtypes = (c_void_p, c_void_p)
        self._work = c_double()

    def launch(self, seconds: float, stream: Stream) -> None:
        self._work.value = seconds
        _check(self._launch(byref(self._work), stream.handle))


class Communicator:
    def __init__(self, rank: int, world: int, unique_id: bytes) -> None:
        self._handle = c_void_p()
        identity = _UniqueId()
        ctypes.memmove(byref(identity), unique_id, UNIQUE_ID_BYTES)
        _check_nccl(_nccl.ncclCommInitRank(byref(self._handle), world, identity, rank))

    def all_reduce(self, buffer: int, count: int, stream: Stream) -> None:
        """In place, float32, sum."""
        _check_nccl(_nccl.ncclAllReduce(buffer, buffer, count, FLOAT32, SUM, self._handle, stream.handle))

    def destroy(self) -> None:
        _check_nccl(_nccl.ncclCommDestroy(self._handle))


def unique_id() -> bytes:
    found = _UniqueId()
    _check_nccl(_nccl.ncclGetUniqueId(byref(found)))
    return ctypes.string_at(byref(found), UNIQUE_ID_BYTES)
