"""Call table rows of CPU collectives: gloo inside XLA (JAX) and Paddle, DeepSpeed's shared memory, oneCCL.

XLA's functions are local symbols of jaxlib's one big library: they are found in its full symbol
table (elf/exports.py). They catch gloo's exceptions and have ended when they return. Their
arguments are not recorded: they change between releases.
"""

from __future__ import annotations

from rankscope.probes.calls.row import BACKWARD, COLLECTIVE, DISPATCH, UPDATE, WAIT, CallRow

# Method of xla::cpu::GlooCommunicator and MpiCommunicator -> name here. Sends and receives of pipelines wait like collectives.
_XLA_METHODS = (
    ("AllReduce", "allreduce"), ("AllGather", "allgather"), ("ReduceScatter", "reduce_scatter"), ("AllToAll", "alltoall"),
    ("CollectivePermute", "permute"), ("Broadcast", "broadcast"), ("Send", "send"), ("Recv", "recv"),
)  # fmt: skip


def _method(space: str, owner: str, name: str) -> str:
    """Mangle the name of a method, without its arguments (Itanium C++ ABI, 5.1).

    `space`: the mangled namespaces around its class `owner`, such as '3xla3cpu'.
    """
    return f"_ZN{space}{len(owner)}{owner}{len(name)}{name}E"


def _xla(method: str, name: str, transport: str) -> CallRow:
    """Build the row of a method of XLA's communicator for `transport` ('Gloo' or 'Mpi'); `name`: as reported."""
    return CallRow(
        "libjax_common.so", _method("3xla3cpu", f"{transport}Communicator", method), name, COLLECTIVE, family="xla",
        elsewhere=("xla_extension.so",),
        # jaxlib 0.4 (xla_extension.so)
        formerly=(_method("3xla3cpu", f"{transport}CollectivesCommunicator", method),),
    )  # fmt: skip


# Every call of a jitted function ends here, on every kind of device; so does every operation outside of one.
_XLA_EXECUTE = CallRow(
    "libjax_common.so",
    "_ZN3xla4ifrt20PjRtLoadedExecutable7ExecuteE",
    "execute",
    DISPATCH,
    family="xla",
    elsewhere=("xla_extension.so",),
)
_XLA_ROWS = (
    *(_xla(method, name, transport) for transport in ("Gloo", "Mpi") for method, name in _XLA_METHODS),
    _XLA_EXECUTE,
)

# Paddle's operations end in their call. Those of its reducer run in the backward pass, on its
# thread.
_PADDLE_METHODS = (
    ("AllReduce", "allreduce"), ("AllGather", "allgather"), ("Broadcast", "broadcast"), ("Reduce", "reduce"), ("Gather", "gather"),
    ("Scatter", "scatter"), ("Barrier", "barrier"), ("Send", "send"), ("Recv", "recv"),
)  # fmt: skip
_PADDLE = "6paddle11distributed"
_PADDLE_ROWS = (
    *(
        CallRow("libpaddle.so", _method(_PADDLE, "ProcessGroupGloo", method), name, COLLECTIVE, family="paddle")
        for method, name in _PADDLE_METHODS
    ),
    CallRow(
        "libpaddle.so", _method(_PADDLE, "EagerReducer", "FinalizeBackward"), UPDATE, WAIT, family="paddle-reducer"
    ),
    CallRow("libpaddle.so", "_ZN3egr11RunBackwardE", "backward", BACKWARD, family="paddle-reducer"),
)

# DeepSpeed builds these on the user's machine. The loop over pieces of the tensor spins until the
# neighbours arrive.
_DEEPSPEED_ROWS = (
    CallRow(
        "deepspeed_shm_comm", "_Z21all_reduce_outer_loopR", "allreduce", COLLECTIVE, family="deepspeed",
        elsewhere=("deepspeed_ccl_comm",),
    ),
)  # fmt: skip

# From the public prototypes of oneCCL (oneapi/ccl/api_functions.hpp). The names are checked
# (tests/data/symbols); not checked is that a collective runs in its call or in the wait for its
# event.
_CCL_ROWS = (
    *(
        CallRow("libccl.so", f"_ZN3ccl2v1{len(symbol)}{symbol}E", symbol, COLLECTIVE, family="ccl")
        for symbol in ("allreduce", "allgather", "allgatherv", "alltoall", "alltoallv", "broadcast", "reduce", "barrier")
    ),
    CallRow(
        "libccl.so", "_ZN3ccl2v114reduce_scatterE", "reduce_scatter", COLLECTIVE, family="ccl",
    ),
    CallRow("libccl.so", "_ZN3ccl2v15event4waitE", "wait", WAIT, family="ccl"),
)  # fmt: skip

CPU_COLLECTIVE_ROWS: tuple[CallRow, ...] = (*_XLA_ROWS, *_PADDLE_ROWS, *_DEEPSPEED_ROWS, *_CCL_ROWS)
