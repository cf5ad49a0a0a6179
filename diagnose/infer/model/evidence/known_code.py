"""Recognise code by its file, symbol or call: data loaders, compilers, the interpreter, the kernel's memory."""

from __future__ import annotations

import re

# Parts of the paths of files that hand out batches.
LOADER_FILES = ("dataloader", "data_loader", "/utils/data/")

# Files whose functions run only while something is compiled, in most samples of steps with a new
# shape and in none of other steps (figures: diagnose/measured.md); most of torch/_dynamo and
# torch/_inductor runs in both.
COMPILER_FILES = (
    "/torch/_dynamo/convert_frame.py",
    "/torch/_inductor/compile_fx.py",
    "/triton/compiler/code_generator.py",
    "/jax/_src/compiler.py",
    "/jax/_src/interpreters/mlir.py",
    "/tensorflow/python/framework/func_graph.py",
)

# Files of what such a compilation calls. The small stacks of a window are kept by their last
# function alone, and a compilation consists of many.
TRACING_FILES = (
    "/torch/_dynamo/symbolic_convert.py", "/torch/_dynamo/variables/", "/torch/_dynamo/output_graph.py",
    "/torch/_dynamo/guards.py", "/torch/_dynamo/bytecode_", "/torch/_functorch/partitioners.py",
    "/torch/_subclasses/", "/torch/_inductor/", "/torch/_refs/", "/torch/_prims", "/torch/_decomp/",
    "/torch/fx/graph.py", "/torch/fx/node.py", "/torch/fx/proxy.py", "/torch/fx/interpreter.py", "/torch/fx/experimental/",
    "/torch/fx/passes/",
)  # fmt: skip

# Files of these folders that run in each step of a compiled model, the whole of it below them
# (torch 2.13, inductor and aot_eager: calls in two steps after three).
RUNNING_FILES = (
    "/torch/_inductor/output_code.py", "/torch/_inductor/runtime/", "/torch/_inductor/utils.py", "/torch/_dynamo/guards.py",
    "/torch/fx/experimental/symbolic_shapes.py",
)  # fmt: skip

# What the kernel does to give a process memory, or to take it back: outside of system calls, and calls (observer/thread/syscalls.py).
PAGE_FAULT = "page fault"
OF_MEMORY = (PAGE_FAULT, "mmap", "munmap", "madvise", "brk", "mremap", "mprotect")

# Python's end of a backward pass, which a thread without Python state computes (observer/tables/rank.py).
BACKWARD_PASS = ("_engine_run_backward",)

INTERPRETER = re.compile(r"^_?Py|^(lib)?python\d")  # the native functions that run Python code itself
