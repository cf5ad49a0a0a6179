"""A row of the call table: a library function whose calls are timed or counted, and what is recorded of them.

`role` says what the time in a call means. Host libraries, whose calls do the work themselves:

collective  the operation itself runs in this call, on any thread: entering to leaving is the *stay*
wait        the calling thread waits here for collectives that run elsewhere
backward    a backward pass; a marker of the step
dispatch    a compiled function is submitted for execution; its call sites count the iterations of the job's own loop
gc          a garbage collection of the interpreter; its address is not found by name (unwinder/interpreter/gc.py)

Accelerator libraries, whose calls put work on a stream and return:

enqueue     an asynchronous collective is put on a stream: a marker of the step; its duration means nothing
group       the end of a group of enqueued collectives
gpu-wait    the calling thread waits here for the GPU
poll        the calling thread asks whether the GPU has finished, without waiting; only summed up
memory      a copy between host and GPU or on the GPU; blocks the thread only where it is long
allocate    GPU memory is allocated or freed; blocks where it is long (freeing waits for the GPU)
launch      a kernel or a graph is launched; never timed, only counted, and some are located, within a budget (launches.py)

Nesting: a runtime call ends in a driver call, a collective launches kernels. For the accelerator
roles only the outermost call of a role on a thread is recorded, in the kernel (`SCOPED`):
cudaStreamSynchronize hides the cuStreamSynchronize inside it, but a memory call and the gpu-wait
inside it are both recorded, and sums over roles must use the outermost scopes. For the host roles
every row counts by itself, as a backward pass contains the wait of its reducer.
"""

from __future__ import annotations

from dataclasses import dataclass

COLLECTIVE = "collective"
WAIT = "wait"
BACKWARD = "backward"
DISPATCH = "dispatch"
GC = "gc"
ENQUEUE = "enqueue"
GROUP = "group"
GPU_WAIT = "gpu-wait"
POLL = "poll"
MEMORY = "memory"
ALLOCATE = "allocate"
LAUNCH = "launch"

HOST_ROLES = (COLLECTIVE, WAIT, BACKWARD, DISPATCH, GC)
SCOPED = (ENQUEUE, GROUP, GPU_WAIT, POLL, MEMORY, ALLOCATE)
ROLES = (*HOST_ROLES, *SCOPED, LAUNCH)
# Calls that locate the job's own loop: the Python stack of their call site is recorded.
SITED = (COLLECTIVE, WAIT, BACKWARD, DISPATCH, GPU_WAIT)

# The name of the function that ends a gradient update. DDP waits here for its last bucket.
UPDATE = "finalize_backward"

# RS_MAX_ROWS in calls.bpf.c. Scopes from here on belong to roles, and hit counters from here on to
# one file each.
MAX_ROWS = 256
# RS_MAX_PLACES there.
MAX_PLACES = 2048

# Bits of `aux` of a collective: datatype, operation, peer or root. Of a copy: the direction alone.
OPERATION_SHIFT, PEER_SHIFT = 8, 16


@dataclass(frozen=True, slots=True)
class CallRow:
    """One timed function. Argument positions count from 1, 0 means "not recorded"; the seventh and
    later are on the stack.
    """

    library: str  # prefix of the name of the mapped file; '' where addresses come from elsewhere
    symbol: str  # prefix of the exported name: what follows it (C++ argument types) changes between releases
    name: str
    role: str
    argument: int = 0  # recorded as `arg`: a count of elements, or bytes; of a launch: the function
    whole: bool = False  # symbol is a C name: only an API version (_v2) or a stream flavour (_ptsz) may follow
    elsewhere: tuple[str, ...] = ()  # further libraries that may export the same function
    family: str = ""  # gloo, nccl, cuda, … ; rows of one family share the meaning of `aux`
    datatype: int = 0  # argument that becomes bits 0-7 of `aux`
    operation: int = 0  # bits 8-15
    peer: int = 0  # bits 16-31: the other rank, or the root
    direction: int = 0  # argument that becomes `aux`: the direction of a copy (copies.py)
    towards: int = 0  # the direction where the function's name says it
    object: int = 0  # recorded as `object` (field `stack` of the event): communicator, stream or event
    shortest_ns: int = 0  # shorter calls are only summed up; 0 = each is an event of its own
    second: int = 0  # multiplied with `arg`: the height of a two-dimensional copy
    int_count: bool = False  # `argument` is a C int, whose register holds anything in its upper half
    formerly: tuple[str, ...] = ()  # prefixes of the name in older releases
    handle: int = 0  # its lower 32 bits become `aux` unchanged: a datatype of MPI

    @property
    def names(self) -> tuple[str, ...]:
        """List the exported names of a `whole` row: its symbol; for CUDA also with each version and stream
        flavour appended (_v2, _ptsz, _ptds).
        """
        tails = ("", "_v2", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds") if self.family == "cuda" else ("",)
        return tuple(self.symbol + tail for tail in tails)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """List the prefixes of the exported name of a row that is not `whole`."""
        return (self.symbol, *self.formerly)

    @property
    def libraries(self) -> tuple[str, ...]:
        """List the prefixes of the names of files that may export the function."""
        return (self.library, *self.elsewhere) if self.library else ()

    @property
    def throws(self) -> bool:
        """Tell whether a C++ exception may pass through the function.

        Such a function must not have a return probe (elf/return_sites.py).
        """
        return self.symbol.startswith("_Z")

    @property
    def summed(self) -> bool:
        """Tell whether calls are added up per process, including those shorter than `shortest_ns`."""
        return self.shortest_ns > 0
