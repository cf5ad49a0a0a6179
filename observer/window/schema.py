"""The window: one host's record of one interval of wall time. Schema `rankscope.window/2`.

A window of one job on one host is a folder `<host>-<start as YYYYmmddTHHMMSSZ>-<seconds>s-<job>/`;
in it are `window.json` (the manifest) and one Parquet file per table below. It contains no raw
events: some tens of kilobytes per rank. Every column is documented here, in the field's metadata
(`doc`, `unit`).

Stacks are a tree: each row of the table `stacks` is a frame and names the row of its caller, so
shared parts are stored once. A pattern names the row of its leaf.

Times inside tables are seconds since the start of the window, by the clock of the observed host.
Ranks are compared by durations, for which clocks of hosts need not agree. Steps of two hosts are
matched by wall time and, if their clocks differ by a third of a step or more, by the lengths of the
steps (diagnose/infer/fleet/clocks/align.py); where neither works, a note says so.
"""

from __future__ import annotations

import pyarrow as pa

ENDED = "that has ended"  # suffix for an unreaped child process in `detail` of patterns
SOCKET_TO = "a socket to "  # prefix of a connection's peer in `detail` of patterns
NOTHING = "null"  # `absent` of a column without a value in older windows

KERNELS = "kernels"  # `name` of the time of all kernels of a rank, kind gpu
BY_LAUNCHES = "by launches"  # `detail` of GPU functions: their time is not seen, that of all is divided by launches

PAUSED_STEPS_MOST = 256  # listed per function; enough to see a rhythm

# The kinds of function (DESIGN.md, "Vocabulary").
KINDS = ("python", "gpu", "memory", "collective", "io", "sync", "sched")


def _field(
    name: str, dtype: pa.DataType, doc: str, unit: str = "", nullable: bool = False, absent: str | None = None
) -> pa.Field:
    """Define a column. `absent`: the value, as text, in windows older than the column; NOTHING:
    null.
    """
    metadata = {"doc": doc}
    if unit:
        metadata["unit"] = unit
    if absent is not None:
        metadata["absent"] = absent
    return pa.field(name, dtype, nullable=nullable, metadata=metadata)


_TEXT = pa.string()
_TEXTS = pa.list_(pa.string())
_LABEL = pa.dictionary(pa.int32(), pa.string())

RANKS = pa.schema(
    [
        _field(
            "job",
            _TEXT,
            "identity of the job: same for all its ranks on all hosts, stable over restarts of the observer",
        ),
        _field("rank", pa.int32(), "global rank"),
        _field("local_rank", pa.int32(), "rank on this host; -1 if unknown"),
        _field("world_size", pa.int32(), "ranks in the job; 0 if unknown"),
        _field(
            "local_world_size",
            pa.int32(),
            "ranks that the rank's launcher started on this host; 0 if unknown",
            absent="0",
        ),
        _field(
            "guessed",
            pa.bool_(),
            "whether the rank's number is a guess: no source names it, and the order of start of its siblings is uncertain",
            absent="false",
        ),
        _field("role", _TEXT, "the group of ranks doing the same work; '' if unknown (peers are then found)"),
        _field("host", _TEXT, "node name of the observed host"),
        _field(
            "node", _TEXT, "node name the rank itself sees (its UTS namespace): a container's name, else the host's"
        ),
        _field("container", _TEXT, "container id from the cgroup path; '' outside one"),
        _field("pid", pa.int32(), "process id in the observer's pid namespace"),
        _field("inner_pid", pa.int32(), "process id the rank itself sees"),
        _field("netns", pa.int64(), "inode of the network namespace"),
        _field("addresses", _TEXTS, "local addresses of the rank's TCP connections to other ranks"),
        _field("gpus", _TEXTS, "GPUs of the rank: gpu0, gpu1, … by NVML's index"),
        _field("nics", _TEXTS, "interfaces that carry the addresses, and the ports nearest to its GPUs"),
        _field("cpus", _TEXT, "CPUs the training thread may run on, as in taskset (0-3,8)"),
        _field("python", _TEXT, "interpreter version"),
        _field("command", _TEXT, "what it runs and the names of its options, no values; escaped"),
        _field(
            "title",
            _TEXT,
            "display name of the job: script or module, the scheduler's number and name; '' if unknown. "
            "Not the same on all hosts where they run different scripts",
            absent="",
        ),
        _field("age_s", pa.float64(), "how long the process had run when the window began", "s", True, absent=NOTHING),
        _field("state", _TEXT, "at the end of the window: running | stopped | exited"),
        _field("stopped_s", pa.float64(), "how long it was stopped (job control) in the window", "s"),
        _field(
            "last_progress_s",
            pa.float64(),
            "time from the last marker (collective, backward) to the window's end",
            "s",
            True,
        ),
        _field(
            "in_collective_s",
            pa.float64(),
            "how long it has been inside an unfinished collective at the end; 0 if in none",
            "s",
        ),
        _field("ended_s", pa.float64(), "when the process ended; below 0: while the probes were loaded", "s", True),
        _field(
            "exit_status", pa.int32(), "as waitpid gives it: signal in the low 7 bits, else exit code x 256", "", True
        ),
        _field("training_thread", pa.int32(), "host tid of the training thread"),
        _field("stack_source", _TEXT, "where Python stacks came from: bpf | py-spy | none"),
        _field("samples", pa.int64(), "stacks taken"),
        _field("failed_samples", pa.int64(), "stacks that could not be walked"),
        _field("owner", pa.int64(), "user id to whom the process belongs on the host; -1 unknown", absent="-1"),
        _field("gpu_ids", _TEXT, "UUIDs of its GPUs, in their order, joined by ','; '' if unknown", absent=""),
        _field(
            "machine",
            _TEXT,
            "identity of the host, whatever its name: a hash of its machine-id; '' if it has none",
            absent="",
        ),
        _field(
            "run",
            _TEXT,
            "digest of the program, all its arguments and its folder, keyed by the host: equal for runs started alike; '' if unknown",
            absent="",
        ),
        _field("tracer", _TEXT, "program that holds it by tracing, with its pid: 'gdb (4242)'; '' if none", absent=""),
    ]
)

STEPS = pa.schema(
    [
        _field("rank", pa.int32(), "global rank"),
        _field(
            "step",
            pa.int32(),
            "0, 1, … in this window; complete steps only. Not aligned between ranks of different hosts",
        ),
        _field("start_s", pa.float32(), "start of the step", "s"),
        _field("seconds", pa.float32(), "duration of the step", "s"),
        _field(
            "own_s",
            pa.float32(),
            "time the critical path spent in the rank's own work: python, io, sched, sync, gpu, memory",
            "s",
        ),
        _field(
            "wait_s",
            pa.float32(),
            "time the critical path spent inside collectives (waiting for others + transfer); on GPUs that are seen: in their kernels",
            "s",
        ),
        _field("io_s", pa.float32(), "part of own_s in file and device I/O", "s"),
        _field("sched_s", pa.float32(), "part of own_s ready but not running", "s"),
        _field("sync_s", pa.float32(), "part of own_s waiting for a thread or process of the same rank", "s"),
        _field(
            "asked_s",
            pa.float32(),
            "part of sync_s in which a server of the run had a request of the rank unanswered",
            "s",
            absent="0",
        ),
    ]
)

PATTERNS = pa.schema(
    [
        _field("rank", pa.int32(), "global rank"),
        _field(
            "thread",
            _LABEL,
            "training | loader (a data-loader worker process) | other | gpu (what the rank launches, parts of its training thread's "
            "row 'kernels'; and, kind sync, where that thread waits for its GPU); only training is on the critical path",
        ),
        _field("kind", _LABEL, "python | gpu | memory | collective | io | sync | sched"),
        _field(
            "name",
            _LABEL,
            "python: qualified name of the leaf function; collective: operation; io: read, write, …; "
            "sync: futex, poll, …; sched: ready; gpu: 'kernels', all together, and on the thread gpu the kernel",
        ),
        _field("file", _LABEL, "Python leaf function: its file ('' where there is none)"),
        _field("line", pa.int32(), "Python leaf function: its first line (0 where there is none)"),
        _field(
            "detail",
            _LABEL,
            "python: 'sleep' where the function waits by its own will, 'gc' for garbage collection, else ''; "
            "io: mount and device; sync: what is waited for; of a wait that fills half of the window and goes on at its end: the file, "
            "the socket or the child processes; "
            f"sched: 'queue' (others ran) or 'throttled'; collective: the library; gpu: '{BY_LAUNCHES}' where the time of all kernels "
            "is divided by their numbers of launches",
        ),
        _field(
            "caller",
            _LABEL,
            "for kinds other than python, and gc: qualified name of the Python leaf that was executing; of launches "
            "without one the thread; else ''",
        ),
        _field(
            "stack", pa.int32(), "Python frames: row of the table stacks that holds the leaf; -1 where there are none"
        ),
        _field(
            "holder_name",
            _LABEL,
            "sync gil: qualified name of the function that held the GIL for most of the wait; '' if unknown",
        ),
        _field("holder_file", _LABEL, "sync gil: the file of that function"),
        _field("holder_line", pa.int32(), "sync gil: its first line; 0 if unknown"),
        _field("holder_thread", _LABEL, "sync gil: name of the thread that held it; '' if unknown"),
        _field(
            "native",
            _LABEL,
            "running Python functions: the native function most of their samples were in ('kernel', or a library's name "
            "where it has no symbol there), else ''",
            "",
            True,
        ),
        _field(
            "beta",
            pa.float32(),
            "share of the window in which this function is on the critical path (0 for thread != training)",
        ),
        _field("mu", pa.float32(), "mean utilisation of the resource while it runs, 0..1", "", True),
        _field("sigma", pa.float32(), "standard deviation of that utilisation", "", True),
        _field("resource", _LABEL, "cpu | gpu | gpu-memory | pcie | nvlink | nic | disk | none"),
        _field("count", pa.int32(), "activities (executions) seen"),
        _field("total_s", pa.float32(), "sum of the activities' durations", "s"),
        _field("p50_s", pa.float32(), "median duration of an activity", "s"),
        _field("p99_s", pa.float32(), "99th percentile", "s"),
        _field("max_s", pa.float32(), "longest", "s"),
        _field(
            "per_step_s",
            pa.float32(),
            "mean seconds per step over the complete steps (total_s / steps where no steps: null)",
            "s",
            True,
        ),
        _field("per_step_sd_s", pa.float32(), "standard deviation over steps of the seconds per step", "s", True),
        _field("bytes", pa.int64(), "bytes moved (io, collective, memory); 0 where not known"),
        _field(
            "growth_s",
            pa.float32(),
            "mean seconds per step in the last third of the complete steps, less in the first third; null of fewer than 15",
            "s",
            True,
            absent=NOTHING,
        ),
        _field(
            "native_share",
            pa.float32(),
            "running Python functions: share of their samples that were in `native`",
            "",
            True,
            absent=NOTHING,
        ),
        _field(
            "kernel_share",
            pa.float32(),
            "running Python functions: share of their samples that were in the kernel",
            "",
            True,
            absent=NOTHING,
        ),
        _field(
            "kernel_for",
            _LABEL,
            "what most of these were for: a system call, or 'page fault' (in none: an interrupt looks the same); else ''",
            absent="",
        ),
    ]
)

STACKS = pa.schema(
    [
        _field("parent", pa.int32(), "row of the frame that called this one, always an earlier row; -1 for a root"),
        _field("name", _LABEL, "qualified name of the function"),
        _field("file", _LABEL, "its file"),
        _field("line", pa.int32(), "its first line"),
    ]
)

PAUSES = pa.schema(
    [
        _field("rank", pa.int32(), "global rank"),
        _field(
            "name",
            _LABEL,
            "work of the training thread in a few steps only, which makes them longer: qualified name of the user's outermost function "
            "that is in no other step, or of its caller if it is a library's; 'gc': garbage collection",
        ),
        _field("file", _LABEL, "the function's file ('' where there is none)"),
        _field("line", pa.int32(), "its first line (0 where there is none)"),
        _field(
            "inside",
            _LABEL,
            "function of a library that it calls in these steps only; '' if the function itself is in these only",
        ),
        _field(
            "more",
            pa.bool_(),
            "whether the function is in all other steps too: then the seconds are its excess over them, and may be chance",
        ),
        _field("count", pa.int32(), "steps in which it was seen"),
        _field("total_s", pa.float32(), "its seconds in all of them", "s"),
        _field("p50_s", pa.float32(), "median of its seconds in one of them", "s"),
        _field("max_s", pa.float32(), "the most in one of them", "s"),
        _field("wait_s", pa.float32(), "part of total_s inside collectives (waiting for others + transfer)", "s"),
        _field(
            "steps", pa.list_(pa.int32()), f"their numbers in the table steps, the first {PAUSED_STEPS_MOST} of them"
        ),
    ]
)

COLLECTIVES = pa.schema(
    [
        _field("rank", pa.int32(), "global rank"),
        _field("sequence", pa.int32(), "position among this rank's collectives of this window, in order of entry"),
        _field("step", pa.int32(), "step it belongs to; -1 outside complete steps"),
        _field(
            "slot",
            pa.int32(),
            "position inside its step: the same slot of the same step index is the same collective on peers",
        ),
        _field("op", _LABEL, "allreduce, broadcast, …"),
        _field("stay_s", pa.float32(), "time between entering and leaving: waiting for others + transfer", "s"),
        _field("bytes", pa.int64(), "payload; 0 where not known"),
    ]
)

FLOWS = pa.schema(
    [
        _field("rank", pa.int32(), "global rank"),
        _field("local", _TEXT, "local address:port"),
        _field("peer", _TEXT, "peer address:port: the `local` of the peer rank's row"),
        _field("interface", _LABEL, "network interface that carries the local address; '' unknown"),
        _field("sent_bytes", pa.int64(), "acknowledged by the peer during the window", "bytes"),
        _field("received_bytes", pa.int64(), "received during the window", "bytes"),
        _field("retransmitted_bytes", pa.int64(), "sent again during the window", "bytes"),
        _field("busy_s", pa.float32(), "time with unacknowledged data outstanding (tcp_info.tcpi_busy_time)", "s"),
        _field(
            "rwnd_limited_s",
            pa.float32(),
            "part of busy_s stalled by the receiver's window: the peer process reads slowly",
            "s",
        ),
        _field("sndbuf_limited_s", pa.float32(), "part of busy_s stalled by this socket's send buffer", "s"),
        _field("rtt_s", pa.float32(), "smoothed round trip, median of the window's samples", "s"),
        _field("min_rtt_s", pa.float32(), "least round trip ever seen", "s"),
        _field("delivery_rate_hz", pa.float64(), "tcpi_delivery_rate, highest of the window's samples", "bytes/s"),
        _field("carried_bytes", pa.int64(), "sent and received since it was opened", "bytes", True, absent=NOTHING),
    ]
)

COUNTERS = pa.schema(
    [
        _field("scope", _LABEL, "host | rank | cgroup | nic | disk | storage | gpu | nvlink | pcie | thread | server"),
        _field("instance", _TEXT, "which one: cgroup path, interface, gpu2, 0000:3b:00.0, …; '' for host and rank"),
        _field("comm", _LABEL, "name of the process that used or owns it; '' if none"),
        _field("pid", pa.int32(), "that process; -1 if none"),
        _field("rank", pa.int32(), "rank concerned; -1 for all on the host"),
        _field("name", _LABEL, "dotted name, e.g. cpu.throttled_s, cpu.taken_s, psi.cpu.some_s, nic.tx_bytes"),
        _field("unit", _LABEL, "s, bytes, events, celsius, …"),
        _field("kind", _LABEL, "delta (growth in the window) | gauge (level)"),
        _field("value", pa.float64(), "delta: growth over the window; gauge: mean level"),
        _field("minimum", pa.float64(), "gauge: least; delta: 0", "", True),
        _field("maximum", pa.float64(), "gauge: greatest; delta: greatest growth per second", "", True),
        _field(
            "limit",
            pa.float64(),
            "what is allowed or nominal, where there is such a thing (quota, link speed, clock)",
            "",
            True,
        ),
    ]
)

TABLES: dict[str, pa.Schema] = {
    "ranks": RANKS,
    "steps": STEPS,
    "patterns": PATTERNS,
    "stacks": STACKS,
    "pauses": PAUSES,
    "collectives": COLLECTIVES,
    "flows": FLOWS,
    "counters": COUNTERS,
}

# Tables that older windows lack: they are read as empty.
YOUNGER = frozenset({"pauses"})
