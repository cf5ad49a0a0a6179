"""Anonymise windows: replace names and paths of a job, its hosts and its users, consistently.

Unchanged: numbers, times and counters; names of devices, kernel threads and collectives; functions
and files of Python itself and of public libraries; and within other names the words by which the
diagnoser recognises purposes (write, backward, …). Notes of the observers are free text and are
left out.
"""

from __future__ import annotations

import ctypes
import ipaddress
import re
import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from rankscope.observer.window.folder import Window
from rankscope.observer.window.schema import ENDED, SOCKET_TO, TABLES

# Public libraries, by their folders in site-packages.
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
# Words in names by which the diagnoser recognises a function's purpose
# (diagnose/infer/causes/rank/storage.py, link/slow_messages.py).
_TELLING = re.compile(
    r"backward|bwd|grad|forward|fwd|activation|write|save|checkpoint|ckpt|dump|flush|upload", re.IGNORECASE
)
_SPECIAL = re.compile(
    r"<(module|lambda|locals|listcomp|setcomp|dictcomp|genexpr)>|"
    r"__(init|new|del|call|enter|exit|iter|next|await|aiter|anext|aenter|aexit|get|set|delete|getattr|getattribute|setattr|delattr|"
    r"getitem|setitem|delitem|contains|len|bool|eq|ne|lt|le|gt|ge|hash|repr|str|format|bytes|add|radd|iadd|sub|mul|matmul|truediv|"
    r"floordiv|mod|pow|neg|abs|post_init|init_subclass|set_name|class_getitem|missing|reversed|reduce|reduce_ex|getstate|setstate|"
    r"copy|deepcopy|array|torch_function|torch_dispatch)__|"
)
# Patterns by which the diagnoser recognises the interpreter and data loaders
# (diagnose/infer/causes/rank/python.py).
_INTERPRETER = re.compile(r"^_?Py|^(lib)?python\d")
_LOADERS = re.compile(r"data_?loader")
_ITS_FILE = re.compile(r"(lib)?python\d[\d.]*(\.so[\d.]*)?")
_STANDARD = re.compile(r"/lib(64)?/python\d[\d.]*/(?=([^/.]+))")
# Those of this Python, and further ones of older and newer versions.
_STANDARD_PARTS = sys.stdlib_module_names | {
    "asynchat", "asyncore", "compression", "concurrent", "distutils", "imp", "lib-dynload", "smtpd", "tomllib", "zipfile", "_bootstrap",
    "_bootstrap_external"
}  # fmt: skip
_PACKAGES = re.compile(r"/lib(64)?/python\d?[\d.]*/(site|dist)-packages/([^/.]+)")
_PUBLIC_PARTS = re.compile(
    r"^(utils|usr|lib|lib64|bin|sbin|local|opt|srv|mnt|home|root|tmp|var|data|proc|sys|dev|shm|python\d?[\d.]*|site-packages|dist-packages)$"
)
# Names without a file; only their kind remains. Functions of the last two are made by libraries, others typed by a user.
_NO_FILE = re.compile(r"<(string|stdin|unknown|__array_function__ internals|eval_with_key)>(\.\d+)?|[?]")
_MADE_BY_LIBRARIES = ("<__array_function__ internals>", "<eval_with_key>")
_KIND_OF_NO_FILE = re.compile(r"^<(frozen |attrs generated |torch_package_\d+>)")
_COMPILED = re.compile(r"^(torchinductor_)(.*)$")
_PUBLIC_PROCESSES = re.compile(
    r"^(python[\d.]*|pt_\w+|(ksoftirqd|kworker|migration|rcu|kswapd|irq|jbd2|kcompactd|khugepaged|watchdog)\b.*)$"
)
_LOOPBACK = re.compile(r"^(127\.|::1$|localhost$|$)")
_PLAIN = re.compile(
    r"^[\w.:/ +,-]{0,60}$"
)  # the observers' own words for counters, operations, devices and sets of CPUs
# scopes of counters whose instances are device names
_DEVICES = ("host", "nic", "disk", "gpu", "nvlink", "pcie")
_PATH = re.compile(r"/[^\s():,;'\"]+")
# Candidates for addresses; `ipaddress` decides. With dashes as in cloud host names.
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:([.-])\d{1,3})(?:\1\d{1,3}){2}\b|\[?(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F.]*\]?"
)
# The code of a library's pool of threads, where its threads wait for one another: public names.
THREAD_POOL = re.compile(
    r"(lib(gomp|iomp5|omp)[-.][\w.-]{0,40}|(gomp|GOMP|_?_kmp|kmp)_\w{1,60}|blas_thread_server|exec_blas_async\w{0,20})"
    r"( \(\d{1,6} threads\))?"
)
_WORD = re.compile(r"[^\W\d]\w*")
# Words in descriptions of waits and mounts.
_ORDINARY = frozenset((*ENDED.split(), *SOCKET_TO.split(), *{
    "sleep", "gc", "queue", "throttled", "job", "control", "a", "an", "the", "to", "of", "on", "by", "in", "at", "for", "and", "or",
    "with", "socket", "pipe", "child", "children", "thread", "threads", "that", "ended", "another", "file", "files", "lock", "other",
    "others", "process", "processes", "read", "write", "connect", "accept", "send", "recv", "poll", "select", "epoll", "futex", "gil",
    "loader", "training", "main", "mostly", "gloo", "nccl", "mpi", "ucc", "mccl", "rccl", "xla", "cpu", "gpu", "device", "memory",
    "host", "kernel", "deleted", "anonymous", "inode", "none", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "nfs", "nfs4", "cifs",
    "smb3", "tmpfs", "ramfs", "overlay", "lustre", "gpfs", "beegfs", "ceph", "fuse", "glusterfs", "squashfs", "vfat", "exfat", "9p",
    "virtiofs", "server", "ost", "proc", "sysfs", "devtmpfs", "hugetlbfs", "autofs"
}))  # fmt: skip


@dataclass(slots=True)
class _Names:
    """Maps old names to new ones, numbered in order of appearance."""

    prefix: str
    known: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Return the new name of an old one, numbered at its first occurrence; '' stays ''."""
        return self.known.setdefault(name, f"{self.prefix}{len(self.known) + 1}") if name else name


class Renaming:
    """One set of replacements, for all windows that belong together."""

    def __init__(self) -> None:
        self._jobs, self._hosts, self._roles = _Names("job-"), _Names("host-"), _Names("role-")
        self._containers, self._owners, self._programs = _Names("container-"), _Names(""), _Names("program-")
        self._functions, self._parts, self._words = _Names("f"), _Names("d"), _Names("w")
        self._subnets, self._within = _Names(""), dict[str, _Names]()
        self._natives = _Names("native_")
        self._addresses: dict[str, str] = {}  # as they were, by what stands for them

    def key(self) -> dict[str, dict[str, str]]:
        """Return what each name stands for, by kind: {'hosts': {'host-1': 'dgx-07'}, …}. Parts of names have keys of
        their own: 'f1.f2' is 'f1' and 'f2' of the functions.
        """
        names = {
            "jobs": self._jobs, "hosts": self._hosts, "roles": self._roles, "containers": self._containers,
            "programs": self._programs, "functions": self._functions, "native_functions": self._natives,
            "path_parts": self._parts, "words": self._words,
        }  # fmt: skip
        found = {kind: {new: old for old, new in each.known.items()} for kind, each in names.items()}
        owners = {str(1000 + int(new)): old for old, new in self._owners.known.items()}
        return {**found, "owners": owners, "addresses": dict(self._addresses)}

    def window(self, window: Window) -> Window:
        """Anonymise a window."""
        manifest = window.manifest
        if manifest.notes:
            said = f"{len(manifest.notes)} notes of the observer were left out of the bundle: they may contain names"
            manifest = replace(manifest, notes=(said,))
        host, jobs = self._hosts.of(manifest.host), tuple(map(self._jobs.of, manifest.jobs))
        sources = tuple(replace(one, why="") for one in manifest.sources)
        manifest = replace(manifest, host=host, jobs=jobs, machine="", sources=sources)
        tables = {name: getattr(window, name) for name in TABLES}
        for name, change in self._changes(_functions_of_libraries(window.stacks)).items():
            tables[name] = _changed(name, tables[name], change)
        return Window(manifest, **tables)

    def _changes(self, public: Set[str]) -> dict[str, dict[tuple[str, ...], Callable[..., Any]]]:
        """Return, per table, columns to read → function for the new value of the first of them.

        `public`: functions of public libraries, of which some tables do not tell the file.
        """
        return {
            "ranks": {
                ("job",): self._jobs.of, ("host",): self._hosts.of, ("node",): self._hosts.of, ("role",): self._roles.of,
                ("container",): self._containers.of, ("addresses",): lambda all_: [self._address(one) for one in all_ or ()],
                ("command",): lambda _: "", ("title",): lambda _: "", ("owner",): self._owner,
                ("gpu_ids",): lambda _: "", ("machine",): lambda _: "", ("run",): lambda _: "", ("tracer",): self._program,
                ("cpus",): self._plain, ("python",): self._plain,
            },
            "patterns": {
                ("name", "file", "kind"): lambda name, file, kind: self._function(name, file) if kind == "python" else self._plain(name),
                ("caller", "file"): self._function, ("file",): self._file, ("detail",): self._text,
                ("holder_name", "holder_file"): self._function, ("holder_file",): self._file,
                ("holder_thread",): self._text,
                ("native",): self._native_function, ("kernel_for",): self._plain,
            },
            "stacks": {("name", "file"): self._function, ("file",): self._file},
            "pauses": {
                ("name", "file"): self._pausing, ("file",): self._file,
                ("inside",): lambda name: name if name in public else self._function(name, ""),
            },
            "flows": {("local",): self._endpoint, ("peer",): self._endpoint},
            "collectives": {("op",): self._plain},
            "counters": {
                ("comm",): self._program, ("instance", "scope"): self._instance, ("name",): self._plain, ("unit",): self._plain,
            },
        }  # fmt: skip

    def _function(self, name: str | None, file: str | None) -> str | None:
        """Replace a function's name, 'Shard.load' → 'f1.f2', except Python's special names and
        public libraries.
        """
        if not name or _is_function_of_library(file or ""):
            return name
        return ".".join(self._part_of_name(part) for part in name.split("."))

    def _pausing(self, name: str | None, file: str | None) -> str | None:
        """Replace the name of a function that pauses a rank; the collector has no file."""
        return name if name == "gc" and not file else self._function(name, file)

    def _part_of_name(self, part: str) -> str:
        """Replace one part of a function's name; append words that show its purpose. Special names stay."""
        if _SPECIAL.fullmatch(part):
            return part
        telling = dict.fromkeys(word.lower() for word in _TELLING.findall(part))
        return "_".join((self._functions.of(part), *telling))

    def _native_function(self, name: str | None) -> str | None:
        """Replace a native function's name; the replacement begins with `Py_` if it belongs to the interpreter.

        Kept: None, '', 'kernel', Python's exports and its binary's name, and a thread pool's code.
        """
        if (
            not name
            or name == "kernel"
            or _ITS_FILE.fullmatch(name)
            or THREAD_POOL.fullmatch(name)
            or _is_exported(name)
        ):
            return name
        return ("Py_" if _INTERPRETER.search(name) else "") + self._natives.of(name)

    def _file(self, path: str | None) -> str | None:
        """Replace a path, '/srv/team/train.py' → '/srv/d1/d2.py'."""
        if not path:
            return path
        if _is_public(path):
            return self._public_file(path)
        if path.startswith("<"):
            kind = _KIND_OF_NO_FILE.match(path)
            if kind is None:
                return f"<{self._words.of(path)}>"
            rest = path[kind.end() :]
            return kind[0] + (self._path(rest) if kind[0].endswith(">") else f"{self._words.of(rest)}>")
        return self._path(path)

    def _public_file(self, path: str) -> str:
        """Replace the installation folder of a public file only."""
        found = _STANDARD.search(path) or _PACKAGES.search(path)
        return path if found is None else self._path(path[: found.start()]) + path[found.start() :]

    def _path(self, path: str) -> str:
        """Replace the parts of a path, except public ones such as usr or lib."""
        return "/".join(map(self._part_of_path, path.split("/")))

    def _part_of_path(self, part: str) -> str:
        """Replace one part of a path; public ones, endings and the word by which data loaders are recognised stay."""
        if not part or _PUBLIC_PARTS.match(part):
            return part
        if compiled := _COMPILED.match(part):
            return compiled[1] + self._parts.of(compiled[2])
        stem, point, ending = part.rpartition(".")
        if point and ending in ("py", "pyc", "so", "ipynb"):
            loads = _LOADERS.search(stem)
            return f"{self._parts.of(stem)}{f'_{loads[0]}' if loads else ''}.{ending}"
        return self._parts.of(part)

    def _address(self, address: str) -> str:
        """Replace an address; those of one subnet (/24, /64) remain in one."""
        if _LOOPBACK.match(address):
            return address
        new = self._other_address(address)
        self._addresses[new] = address
        return new

    def _other_address(self, address: str) -> str:
        """Return the replacement of an address, 10.0.<subnet>.<number> or fd00:<subnet>::<number>."""
        if ":" in address:
            known = _ip_of(address)
            if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
                return f"::ffff:{self._address(str(known.ipv4_mapped))}"
            address = known.exploded if known else address
            subnet = ":".join(address.split(":")[:4])
            return f"fd00:{self._subnets.of(subnet)}::{self._within.setdefault(subnet, _Names('')).of(address)}"
        subnet = address.rpartition(".")[0]
        return f"10.0.{self._subnets.of(subnet)}.{self._within.setdefault(subnet, _Names('')).of(address)}"

    def _endpoint(self, text: str) -> str:
        """Replace the address in 'address:port' or '[address]:port'; the port stays."""
        address, colon, port = text.rpartition(":")
        if address.startswith("["):
            return f"[{self._address(address[1:-1])}]:{port}"
        return f"{self._address(address)}{colon}{port}"

    def _owner(self, owner: int) -> int:
        """Replace a user id by 1001, 1002, …; root (0) and unknown (-1) stay."""
        return owner if owner <= 0 else 1000 + int(self._owners.of(str(owner)))

    def _program(self, comm: str) -> str:
        """Replace the name of a process, except public ones (python, kernel threads)."""
        return comm if not comm or _PUBLIC_PROCESSES.match(comm) else self._programs.of(comm)

    def _plain(self, text: str) -> str:
        """Return a word of the observers unchanged; replace anything else, which is forged."""
        return text if _PLAIN.match(text) else self._text(text)

    def _instance(self, instance: str, scope: str) -> str:
        """Return names of devices unchanged; replace paths of cgroups and names of threads."""
        if scope == "cgroup" and instance.startswith("/"):
            return self._path(instance)
        thread, colon, code = instance.partition(": ")
        if colon and THREAD_POOL.fullmatch(code):
            return f"{self._text(thread)}: {code}"
        return self._plain(instance) if scope in _DEVICES else self._text(instance)

    def _text(self, text: str) -> str:
        """Replace paths, addresses and names in a description, but not ordinary words."""
        said, at = [], 0
        for found in re.finditer(f"{_PATH.pattern}|{_ADDRESS.pattern}|{_WORD.pattern}", text):
            said += [text[at : found.start()], self._word(found[0])]
            at = found.end()
        return "".join([*said, text[at:]])

    def _word(self, word: str) -> str:
        """Replace a path, an address or a word of a description; ordinary words and other numbers stay."""
        if word.startswith("/"):
            return self._file(word) or ""
        if _ADDRESS.fullmatch(word):
            bare = word.strip("[]")
            address = bare.replace("-", ".")
            if _ip_of(address) is None:
                return word  # numbers of a device, a time
            new = self._address(address)
            return word.replace(bare, new if address == bare else new.replace(".", "-"))
        return word if word.lower() in _ORDINARY else self._words.of(word)


def _is_public(file: str) -> bool:
    """Tell whether a file is Python's own, or a public library's."""
    if _NO_FILE.fullmatch(file):
        return True
    if file.startswith("<frozen "):
        return file[len("<frozen ") :].rstrip(">").partition(".")[0] in _STANDARD_PARTS
    found = _PACKAGES.search(file)
    if found is not None:
        return found[3] in PUBLIC_LIBRARIES
    standard = _STANDARD.search(file)
    return standard is not None and standard[2] in _STANDARD_PARTS


def _is_function_of_library(file: str) -> bool:
    """Tell whether functions of this file are Python's own, or a public library's."""
    return _is_public(file) and (file.startswith(_MADE_BY_LIBRARIES) or not _NO_FILE.fullmatch(file))


def _functions_of_libraries(stacks: pa.Table) -> frozenset[str]:
    """Return the names of functions that only public libraries have in these stacks."""
    places = {
        (name, _is_function_of_library(file))
        for name, file in zip(stacks["name"].to_pylist(), stacks["file"].to_pylist(), strict=True)
    }
    return frozenset(name for name, public in places if public and (name, False) not in places)


def _is_exported(name: str) -> bool:
    """Tell whether a name belongs to Python's C interface, according to this Python."""
    return name.startswith(("Py", "_Py")) and name.isascii() and name.isidentifier() and hasattr(ctypes.pythonapi, name)


def _ip_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; None if the text is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _changed(name: str, table: pa.Table, change: dict[tuple[str, ...], Callable[..., Any]]) -> pa.Table:
    """Return table `name` with new values in these columns, all computed from the old ones.

    `change`: columns to read -> function for the new value of the first of them.
    """
    schema, made = TABLES[name], {}
    for columns, function in change.items():
        rows: Sequence[tuple[Any, ...]] = list(zip(*(table[column].to_pylist() for column in columns), strict=True))
        new = {row: function(*row) for row in dict.fromkeys(rows)} if columns != ("addresses",) else {}
        made[columns[0]] = [new[row] if new else function(*row) for row in rows]
    for column, values in made.items():
        at = schema.get_field_index(column)
        table = table.set_column(at, schema.field(at), pa.array(values, schema.field(at).type))
    return table
