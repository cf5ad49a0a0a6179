"""Probes that are let go of, on a host on which no thread is to be had."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, select
from rankscope.probes.bpf.module import Module

pipes = [os.pipe() for _ in range(12)]
module = Module(None, {}, held={end for _, end in pipes}, may_rest=True)
os.setgid(65534)
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
module.rest()
print(len(select.select([end for end, _ in pipes], [], [], 0)[0]), "of", len(pipes), "ended;", module.rests)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become who may have no thread")
def test_probes_are_let_go_of_where_no_thread_is_to_be_had() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert said.stdout == "12 of 12 ended; True\n", said.stderr
