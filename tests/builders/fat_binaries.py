"""Fat binaries as the CUDA compiler writes them, and host programs that register their kernels."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyarrow

from rankscope.unwinder.gpu.fatbin import CUBIN, LZ4, PTX, STORED, ZSTD

_FLAGS = {STORED: 0x11, LZ4: 0x2011, ZSTD: 0x8011}


def cubin(kernels: Sequence[str], functions: Sequence[str] = (), code_bytes: int = 256) -> bytes:
    """The beginning of a cubin, which is all that is read: the file header, then the names of sections."""
    names = [".shstrtab", ".strtab", ".symtab", ".nv.info"]
    for name in kernels:
        names += [f".text.{name}", f".nv.info.{name}", f".nv.constant0.{name}"]
    names += [f".text.{name}" for name in functions]
    text = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    symbols = b"\0" + b"".join(name.encode() + b"\0" for name in (*kernels, *functions))
    return b"\x7fELF\x02\x01\x01".ljust(64, b"\0") + text + symbols + bytes(i * 7 % 251 for i in range(code_bytes))


def ptx(kernels: Sequence[str]) -> bytes:
    """PTX with these kernels, and a function that is none."""
    head = ".version 8.4\n.target sm_80\n.address_size 64\n.func (.param .b32 r) helper() { ret; }\n"
    return (head + "".join(f".visible .entry {name}(\n\t.param .u64 p\n)\n{{ ret; }}\n" for name in kernels)).encode()


def packed(data: bytes, packing: str) -> bytes:
    if packing == STORED:
        return data
    codec = pyarrow.Codec("lz4_raw" if packing == LZ4 else "zstd")
    return bytes(codec.compress(data, asbytes=True))


def image(data: bytes, kind: int = CUBIN, arch: int = 80, packing: str = STORED, header_bytes: int = 64) -> bytes:
    """One image with its header."""
    stored = packed(data, packing)
    padding = -len(stored) % 8
    compressed, unpacked = (len(stored), len(data)) if packing != STORED else (0, 0)
    head = struct.pack(
        "<HHIQIIIIIIQQQ", kind, 0x101, header_bytes, len(stored) + padding, compressed, 0, 0, arch, 0, 0, _FLAGS[packing], 0, unpacked,
    )  # fmt: skip
    return head.ljust(header_bytes, b"\0") + stored + bytes(padding)


def container(*images: bytes) -> bytes:
    body = b"".join(images)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def fat_binary(kernels: Sequence[str], packing: str = STORED) -> bytes:
    """A container with kernels for two architectures, and their PTX."""
    return container(
        image(cubin(kernels), arch=80, packing=packing), image(cubin(kernels), arch=90, packing=packing), image(ptx(kernels), PTX, 90)
    )  # fmt: skip


_HOST = """
#include <stddef.h>
struct wrapper { int magic, version; const void *data; void *file; };
extern const char fat[];
__asm__(".section .nv_fatbin, \\"a\\"\\n.align 8\\nfat: .incbin \\"FAT\\"\\n.previous\\n");
static const struct wrapper descriptor __attribute__((section(".nvFatBinSegment"), used)) = {0x466243b1, 1, fat, 0};
RUNTIME
static void **handle;
KERNELS
static void register_all(void **handle) { CALLS }
__attribute__((constructor)) static void begin(void) {
    void (*volatile callback)(void **) = register_all;
    handle = __cudaRegisterFatBinary((void *)&descriptor);
    callback(handle);
    __cudaRegisterFatBinaryEnd(handle);
}
__attribute__((constructor)) static void other(void) { noted("_Z5otherv", (void *)begin, "_Z5otherv"); }
"""
# As CUDA 13 has it: what is launched is a handle, which the runtime gives for the host function.
_STUB = """
SHOWN __attribute__((noinline)) void stub_NUMBER(void *a) {
    static void *handle;
    if (!handle)
        __cudaGetKernel(&handle, (const void *)stub_NUMBER);
    __cudaLaunchKernel(handle, a);
    noted(0, (char *)a + NUMBER, 0);
}
"""
_DECLARED = """
#define SHOWN __attribute__((visibility("default")))
int __cudaGetKernel(void **, const void *); int __cudaLaunchKernel(void *, void *);
void **__cudaRegisterFatBinary(void *); void __cudaRegisterFatBinaryEnd(void **); void noted(const char *, void *, const char *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int);
"""
RUNTIME = """
#include <stddef.h>
__attribute__((visibility("default"))) void *caller;
int __cudaGetKernel(void **a, const void *b) { *a = (char *)b + 1; return 0; }
int __cudaLaunchKernel(void *a, void *b) { (void)a; (void)b; caller = __builtin_return_address(0); __asm__ volatile(""); return 0; }
void **__cudaRegisterFatBinary(void *a) { static void *h; h = a; return &h; }
void __cudaRegisterFatBinaryEnd(void **a) { (void)a; }
void noted(const char *a, void *b, const char *c) { (void)a; (void)b; (void)c; }
void __cudaRegisterFunction(void **a, const char *b, char *c, const char *d, int e, void *f, void *g, void *h, void *i, int *j)
{ (void)a; (void)b; (void)c; (void)d; (void)e; (void)f; (void)g; (void)h; (void)i; (void)j; __asm__ volatile(""); }
void __cudaRegisterVar(void **a, char *b, char *c, const char *d, int e, size_t f, int g, int h)
{ (void)a; (void)b; (void)c; (void)d; (void)e; (void)f; (void)g; (void)h; __asm__ volatile(""); }
"""


def host_library(folder: Path, kernels: Sequence[str], *flags: str, static: bool = False, strip: bool = False) -> Path:
    """Compile a library that registers kernels as `nvcc` has the host compiler do it.

    The host function of kernel i is `stub_i`. `static`: with the runtime in it.
    """
    (folder / "fat").write_bytes(fat_binary(kernels))
    stubs = "".join(_STUB.replace("NUMBER", str(i)) for i in range(len(kernels)))
    calls = "".join(
        f'__cudaRegisterFunction(handle, (const char *)stub_{i}, (char *)"{name}", "{name}", -1, 0, 0, 0, 0, 0);\n'
        for i, name in enumerate(kernels)
    )
    calls += (
        'static int shadow; __cudaRegisterVar(handle, (char *)&shadow, (char *)"_device", "_device", 0, 4, 0, 0);\n'
    )
    text = _HOST.replace("FAT", str(folder / "fat")).replace("KERNELS", stubs).replace("CALLS", calls)
    (folder / "runtime.c").write_text(RUNTIME)
    (folder / "host.c").write_text(text.replace("RUNTIME", _DECLARED))
    sources = [folder / "host.c", *([folder / "runtime.c"] if static else [])]
    library = folder / "libhost.so"
    visible = ["-fvisibility=hidden"] if static else []
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", *visible, *flags, "-o", library, *sources], check=True)
    if strip:
        subprocess.run(["strip", library], check=True)
    return library
