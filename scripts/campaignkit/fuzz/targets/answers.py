"""What other programs answer: NCCL, py-spy, hooks, sweeps of other hosts, the compiler's process; and a configuration."""

from __future__ import annotations

import json
import pickle
from functools import lru_cache

from campaignkit.fuzz.target import Target, chosen_by_first_byte
from rankscope.diagnose.infer.flight import dumps
from rankscope.diagnose.infer.flight.account import blames
from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep import output
from rankscope.diagnose.sweep.config import parse_config
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.hook import complaint
from rankscope.diagnose.sweep.peers import odd_ones, parse_sweep
from rankscope.diagnose.sweep.registry import all_checks
from rankscope.probes.bpf.compiler.compiled import from_bytes
from rankscope.probes.nccl import ras_answer
from rankscope.probes.nccl.ras import listening
from rankscope.unwinder.walk import pyspy

_JSON = (
    b"{",
    b"[",
    b'"',
    b":",
    b",",
    b"null",
    b"true",
    b"1e999",
    b"9" * 400,
    b"9" * 4400,
    b"-1",
    b"NaN",
    b"\\ud800",
    b"[{",
    b'{"a":',
)


def _ras(data: bytes) -> None:
    first = ras_answer.parse(data)
    ras_answer.laggards(first, first)


def _listening(data: bytes) -> None:
    listening({"NCCL_RAS_ADDR": data.decode("utf-8", "replace")})


_RAS = (
    json.dumps({
        "nccl_version": "2.28.7", "ras": {"timeouts_count": 1}, "communicators": [{
            "hash": "0xab", "size": 2,
            "ranks": [{"rank": 0, "host": "a", "pid": 7, "cuda_dev": 0, "nvml_dev": 0, "collective_counts": {"AllReduce": 9},
                       "status": {"init_state": 0, "async_error": 7, "abort_flag": False}}],
            "missing_ranks": [{"rank": 1, "host": "b", "pid": 9, "cuda_dev": 1, "nvml_dev": 1, "status": {"considered_dead": True}}],
        }],
    }).encode(),
    b"NCCL version 2.24.3 compiled with CUDA 12.4\n#0-0 (ab) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    b"  1 ranks have launched up to operation 7\n  Rank 1 -- GPU 1 (NVML 2) managed by process 77 on node b\n"
    b"  Rank 2 has launched up to operation 3 -- GPU 1 managed by process 78 on node b\nDEAD\n  Process 7 on node c managing GPU 0\n"
    b"TIMEOUT\n  Encountered 3 communication timeouts\n",
)  # fmt: skip


def _pyspy(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for sample in pyspy.parse_raw(text):
        if not all(frame.name.isprintable() and frame.file.isprintable() for frame in sample.frames):
            raise AssertionError(f"not printable: {sample!r}")
    pyspy.parse_log(text)
    pyspy.explain(text)


_PYSPY = (
    b'process 7:"python x";thread (7): MainThread;main (/a/b.py:3);step (c.py:7) 12\n',
    b"Samples: 99 Errors: 3\n1.21s behind in sampling, results may be inaccurate\nError: Failed to find python version\n",
)


def _hook(data: bytes) -> None:
    """A hook's complaint, up to the terminal, the log, the metrics and the JSON."""
    note = complaint(data)
    finding = Finding("os.kmsg", CRITICAL, data[:64].decode("utf-8", "replace"), note, note, "", "", note, "")
    sweep = Sweep("host", 0.0, 0.0, "", 0.0, 0.0, (finding,), (), 0, 1, (), (), (f"hook /x: exit code 3: {note}",))
    lines = list(output.as_text(sweep, verbose=True))
    if not all(line.isprintable() for line in lines) or sum(line.startswith("critical: ") for line in lines) != 1:
        raise AssertionError(f"a hook can say {lines!r}")
    json.dumps(output.as_json(sweep)).encode()
    for line in output.as_prometheus(sweep).splitlines():
        if not line.startswith(("#", "rankscope_sweep_")):
            raise AssertionError(f"a metric {line!r}")
    list(output.syslog_lines(sweep))


def _sweeps(data: bytes) -> None:
    _, one = parse_sweep(data)
    odd_ones((one, one, one))


_SWEEP = json.dumps({
    "schema": output.SCHEMA, "host": "a", "time": "2026-01-01T00:00:00Z", "summary": {"state": "ok"},
    "findings": [{"id": "disk.full", "instance": "/", "value": 7.5}, {"id": "gpu.ecc", "instance": "gpu0", "value": "x"}],
}).encode()  # fmt: skip
_COMPILED = b'{"maps": [], "programs": [{"name": "a", "code": "AAAA"}], "license": "GPL", "compiler": [["/a", 1, 2]]}'

_CONFIG = (
    b'[sweep]\nconfirm_s = 0\nhook = "/x"\ntimeout_s = 20\nignore = ["gpu.ecc"]\n[check."disk.full"]\nwarning = 90\n'
)

_DUMP = {
    "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 7, "last_completed_collective": 6}},
    "entries": [{"pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 7, "is_p2p": False, "state": "scheduled",
                 "profiling_name": "nccl:all_reduce", "input_sizes": [[64], [2, 3]]}],
}  # fmt: skip


def _recorder(data: bytes) -> None:
    one = dumps.parse(data, 0)
    blames([one, dumps.parse(_recorders()[0], 1)])


@lru_cache(maxsize=1)
def _recorders() -> list[bytes]:
    """As Python and as PyTorch writes it."""
    return [pickle.dumps(_DUMP, protocol) for protocol in (2, 4)]


_checks = lru_cache(maxsize=1)(all_checks)  # to find them takes longer than to read a file

TARGETS = (
    Target(
        "recorder",
        "dumps of PyTorch's flight recorder",
        _recorder,
        _recorders,
        words=(
            b"h\x00h\x00\x86q\x00",
            b"]q\x00",
            b"(",
            b"\x85",
            b"\x86",
            b"}",
            b"2",
            b"0",
            b"Ns",
            b"\x8a\xff",
            b"I" + b"9" * 400 + b"\n",
            b"R",
            b"c__builtin__\nexec\n",
        ),
        longest_bytes=16384,
    ),
    Target(
        "ras",
        "what NCCL says of itself, in both formats",
        chosen_by_first_byte(_ras, _listening),
        lambda: [*(b"\0" + one for one in _RAS), b"\1[::1]:28028", b"\1localhost:7"],
        raises=(ras_answer.NotRas, ValueError),
        words=(*_JSON, b"\0" + b"[" * 2000, b"  Rank 1 -- ", b"#0-0 (ab) MISMATCH\n", b" has ", b" ranks have ", b"\n"),
        longest_bytes=16384,
    ),
    Target(
        "py-spy",
        "what py-spy prints",
        _pyspy,
        lambda: list(_PYSPY),
        words=(b" (", b";", b"thread (", b"):", b" 1\n", b"1.", b"ms behind in sampling"),
        longest_bytes=16384,
    ),
    Target(
        "hook",
        "what a hook writes, as it is shown",
        _hook,
        lambda: [b"scontrol: error\n", "\u202ecritical: host: \x1b[2J\n".encode()],
        words=(b"critical: ", b"\n", b"\x1b[", b"\xe2\x80\xae", b'"', b"\\", b"}", b"\r"),
    ),
    Target(
        "sweeps",
        "sweeps of other hosts",
        _sweeps,
        lambda: [_SWEEP],
        raises=(ValueError,),
        words=_JSON,
        longest_bytes=16384,
    ),
    Target(
        "compiled",
        "compiled programs, from the compiler's process or the cache",
        from_bytes,
        lambda: [_COMPILED],
        words=_JSON,
    ),
    Target(
        "config",
        "the sweep's configuration",
        lambda data: parse_config(data.decode("utf-8", "replace"), _checks()),
        lambda: [_CONFIG],
        words=(b"[", b"[[", b"=", b"{", b"a.", b'"""', b"'", b"9" * 400, b"\n[check."),
    ),
)
