"""Windows in which names and paths of a job, its hosts and its users are replaced, each by the same one wherever it stands.

What stays: numbers, times and counters; names of devices, kernels threads and collectives; functions and files of Python itself and of
libraries that anybody can have; of the others' names the words by which the diagnoser tells what a function is for (write, backward, …).
Notes of the observers are free text and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from rankscope.observer.window.folder import Window
from rankscope.observer.window.schema import TABLES

# Libraries that anybody can have, as their folders in site-packages are called.
PUBLIC_LIBRARIES = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torch_xla", "triton", "numpy", "scipy", "pandas", "pyarrow",
    "sklearn", "jax", "jaxlib", "flax", "optax", "haiku", "orbax", "tensorflow", "keras", "tensorboard", "transformers", "accelerate",
    "datasets", "tokenizers", "safetensors", "huggingface_hub", "peft", "trl", "diffusers", "evaluate", "timm", "lightning",
    "lightning_fabric", "lightning_utilities", "pytorch_lightning", "deepspeed", "megatron", "apex", "flash_attn", "xformers",
    "bitsandbytes", "vllm", "transformer_engine", "horovod", "ray", "mpi4py", "dask", "distributed", "nvidia", "cupy", "numba",
    "llvmlite", "wandb", "mlflow", "PIL", "cv2", "albumentations", "webdataset", "tqdm", "psutil", "requests", "urllib3", "fsspec",
    "s3fs", "aiohttp", "yaml", "omegaconf", "hydra", "click", "typer", "rich", "setuptools", "pkg_resources", "attr", "pydantic",
    "regex", "sentencepiece", "einops", "torchmetrics", "composer", "streaming", "py_spy"
})  # fmt: skip
# Words in names by which the diagnoser tells what a function does (diagnose/hypotheses/rank/storage.py, link/slow_messages.py).
_TELLING = re.compile(
    r"backward|bwd|grad|forward|fwd|activation|write|save|checkpoint|ckpt|dump|flush|upload", re.IGNORECASE
)
_SPECIAL = re.compile(r"^(<.*>|__\w+__|)$")  # <module>, <locals>, __init__
_INTERPRETER = re.compile(r"^_?Py|^(lib)?python\d|^kernel$")
_STANDARD = re.compile(r"/lib(64)?/python\d[\d.]*/(?!(site|dist)-packages/)")
_PACKAGES = re.compile(r"/lib(64)?/python\d?[\d.]*/(site|dist)-packages/([^/.]+)")
_PUBLIC_PARTS = re.compile(
    r"^(usr|lib|lib64|bin|sbin|local|opt|srv|mnt|home|root|tmp|var|data|proc|sys|dev|shm|python\d?[\d.]*|site-packages|dist-packages)$"
)
_COMPILED = re.compile(r"^(torchinductor_)(.*)$")
_PUBLIC_PROCESSES = re.compile(
    r"^(python[\d.]*|pt_\w+|(ksoftirqd|kworker|migration|rcu|kswapd|irq|jbd2|kcompactd|khugepaged|watchdog)\b.*)$"
)
_LOOPBACK = re.compile(r"^(127\.|::1$|localhost$|$)")
_PLAIN = re.compile(
    r"^[\w.:/ +,-]{0,60}$"
)  # what observers themselves call counters, operations, devices and sets of CPUs
_DEVICES = ("host", "nic", "disk", "gpu", "nvlink", "pcie")  # scopes of counters whose instances are names of devices
_PATH = re.compile(r"/[^\s():,;'\"]+")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|\[?(?:[0-9a-f]{0,4}:){3,7}[0-9a-f]{0,4}\]?")
_WORD = re.compile(r"[^\W\d]\w*")
# In descriptions of what is waited for, and of mounts.
_ORDINARY = frozenset({
    "sleep", "gc", "queue", "throttled", "job", "control", "a", "an", "the", "to", "of", "on", "by", "in", "at", "for", "and", "or",
    "with", "socket", "pipe", "child", "children", "thread", "threads", "that", "ended", "another", "file", "files", "lock", "other",
    "others", "process", "processes", "read", "write", "connect", "accept", "send", "recv", "poll", "select", "epoll", "futex", "gil",
    "loader", "training", "main", "mostly", "gloo", "nccl", "mpi", "ucc", "mccl", "rccl", "xla", "cpu", "gpu", "device", "memory",
    "host", "kernel", "deleted", "anonymous", "inode", "none", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "nfs", "nfs4", "cifs",
    "smb3", "tmpfs", "ramfs", "overlay", "lustre", "gpfs", "beegfs", "ceph", "fuse", "glusterfs", "squashfs", "vfat", "exfat", "9p",
    "virtiofs", "proc", "sysfs", "devtmpfs", "hugetlbfs", "autofs"
})  # fmt: skip


@dataclass(slots=True)
class _Names:
    """Old name → new name, numbered as they come."""

    prefix: str
    known: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        return self.known.setdefault(name, f"{self.prefix}{len(self.known) + 1}") if name else name


class Renaming:
    """One set of replacements, for all windows that belong together."""

    def __init__(self) -> None:
        self._jobs, self._hosts, self._roles = _Names("job-"), _Names("host-"), _Names("role-")
        self._containers, self._owners, self._programs = _Names("container-"), _Names(""), _Names("program-")
        self._functions, self._parts, self._words = _Names("f"), _Names("d"), _Names("w")
        self._subnets, self._within = _Names(""), dict[str, _Names]()
        self._native = _Names("native_")

    def window(self, window: Window) -> Window:
        """The same window under other names."""
        manifest = window.manifest
        if manifest.notes:
            said = f"{len(manifest.notes)} notes of the observer were left out of the bundle: they may hold names"
            manifest = replace(manifest, notes=(said,))
        host, jobs = self._hosts.of(manifest.host), tuple(map(self._jobs.of, manifest.jobs))
        manifest = replace(manifest, host=host, jobs=jobs, machine="")
        tables = {name: getattr(window, name) for name in TABLES}
        for name, change in self._changes().items():
            tables[name] = _changed(name, tables[name], change)
        return Window(manifest, **tables)

    def _changes(self) -> dict[str, dict[tuple[str, ...], Callable[..., Any]]]:
        """Per table: columns that are read → what becomes of the first of them."""
        return {
            "ranks": {
                ("job",): self._jobs.of, ("host",): self._hosts.of, ("node",): self._hosts.of, ("role",): self._roles.of,
                ("container",): self._containers.of, ("addresses",): lambda all_: [self._address(one) for one in all_ or ()],
                ("command",): lambda _: "", ("title",): lambda _: "", ("owner",): self._owner,
                ("gpu_ids",): lambda _: "", ("machine",): lambda _: "",
                ("cpus",): self._plain, ("python",): self._plain,
            },
            "patterns": {
                ("name", "file", "kind"): lambda name, file, kind: self._function(name, file) if kind == "python" else self._plain(name),
                ("caller", "file"): self._function, ("file",): self._file, ("detail",): self._text,
                ("holder_name", "holder_file"): self._function, ("holder_file",): self._file,
                ("holder_thread",): self._text,
                ("native",): lambda name: name if not name or _INTERPRETER.search(name) else self._native.of(name),
            },
            "stacks": {("name", "file"): self._function, ("file",): self._file},
            "pauses": {
                ("name", "file"): self._function, ("file",): self._file, ("inside",): lambda name: self._function(name, "?"),
            },
            "flows": {("local",): self._endpoint, ("peer",): self._endpoint},
            "collectives": {("op",): self._plain},
            "counters": {
                ("comm",): self._program, ("instance", "scope"): self._instance, ("name",): self._plain, ("unit",): self._plain,
            },
        }  # fmt: skip

    def _function(self, name: str | None, file: str | None) -> str | None:
        """'Shard.load' → 'f1.f2'. What is special in Python, and what is a public library's, stays."""
        if not name or _is_public(file or ""):
            return name
        return ".".join(self._part_of_name(part) for part in name.split("."))

    def _part_of_name(self, part: str) -> str:
        if _SPECIAL.match(part):
            return part
        telling = _TELLING.search(part)
        return self._functions.of(part) + (f"_{telling[0].lower()}" if telling else "")

    def _file(self, path: str | None) -> str | None:
        """'/srv/team/train.py' → '/srv/d1/d2.py'."""
        if not path or path.startswith("<"):
            return path
        found = _STANDARD.search(path) or _PACKAGES.search(path)
        if found is None:
            return self._path(path)
        public = found.re is _STANDARD or found[3] in PUBLIC_LIBRARIES
        rest = path[found.start() :] if public else self._path(path[found.start() :])
        return self._path(path[: found.start()]) + rest

    def _path(self, path: str) -> str:
        return "/".join(map(self._part_of_path, path.split("/")))

    def _part_of_path(self, part: str) -> str:
        if not part or part.startswith("<") or _PUBLIC_PARTS.match(part):
            return part
        if compiled := _COMPILED.match(part):
            return compiled[1] + self._parts.of(compiled[2])
        stem, point, ending = part.rpartition(".")
        if point and ending in ("py", "pyc", "so", "ipynb"):
            return f"{self._parts.of(stem)}.{ending}"
        return self._parts.of(part)

    def _address(self, address: str) -> str:
        """Addresses of one subnet (/24, /64) stay together."""
        if _LOOPBACK.match(address):
            return address
        if ":" in address:
            subnet = ":".join(address.split(":")[:4])
            return f"fd00:{self._subnets.of(subnet)}::{self._within.setdefault(subnet, _Names('')).of(address)}"
        subnet = address.rpartition(".")[0]
        return f"10.0.{self._subnets.of(subnet)}.{self._within.setdefault(subnet, _Names('')).of(address)}"

    def _endpoint(self, text: str) -> str:
        address, colon, port = text.rpartition(":")
        if address.startswith("["):
            return f"[{self._address(address[1:-1])}]:{port}"
        return f"{self._address(address)}{colon}{port}"

    def _owner(self, owner: int) -> int:
        return owner if owner <= 0 else 1000 + int(self._owners.of(str(owner)))

    def _program(self, comm: str) -> str:
        return comm if not comm or _PUBLIC_PROCESSES.match(comm) else self._programs.of(comm)

    def _plain(self, text: str) -> str:
        """A word of the observers, as it is; what is none was forged."""
        return text if _PLAIN.match(text) else self._text(text)

    def _instance(self, instance: str, scope: str) -> str:
        """Names of devices stay; paths of cgroups and names of threads do not."""
        if scope == "cgroup" and instance.startswith("/"):
            return self._path(instance)
        return self._plain(instance) if scope in _DEVICES else self._text(instance)

    def _text(self, text: str) -> str:
        """A description: its paths, addresses and names replaced, its ordinary words kept."""
        said, at = [], 0
        for found in re.finditer(f"{_PATH.pattern}|{_ADDRESS.pattern}|{_WORD.pattern}", text):
            said += [text[at : found.start()], self._word(found[0])]
            at = found.end()
        return "".join([*said, text[at:]])

    def _word(self, word: str) -> str:
        if word.startswith("/"):
            return self._file(word) or ""
        if _ADDRESS.fullmatch(word):
            return self._address(word.strip("[]"))
        return word if word.lower() in _ORDINARY else self._words.of(word)


def _is_public(file: str) -> bool:
    """Whether anybody can have this file: Python's own, or a public library's."""
    if file.startswith("<frozen ") or _STANDARD.search(file):
        return True
    found = _PACKAGES.search(file)
    return found is not None and found[3] in PUBLIC_LIBRARIES


def _changed(name: str, table: pa.Table, change: dict[tuple[str, ...], Callable[..., Any]]) -> pa.Table:
    """The table with new values in these columns, all made from the old ones."""
    schema, made = TABLES[name], {}
    for columns, function in change.items():
        rows: Sequence[tuple[Any, ...]] = list(zip(*(table[column].to_pylist() for column in columns), strict=True))
        new = {row: function(*row) for row in dict.fromkeys(rows)} if columns != ("addresses",) else {}
        made[columns[0]] = [new[row] if new else function(*row) for row in rows]
    for column, values in made.items():
        at = schema.get_field_index(column)
        table = table.set_column(at, schema.field(at), pa.array(values, schema.field(at).type))
    return table
