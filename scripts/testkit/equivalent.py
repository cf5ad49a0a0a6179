"""Mutants that change nothing that anybody could see, and why."""

from __future__ import annotations

from testkit.mutants import Mutant

# File, what becomes of it, the text that it is part of (once in the file): why nothing can notice.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("probes/confine/calls.py", "row left out: None", '"arch_prctl": (158, None)'): "158 is allowed on aarch64 anyway: getgroups",
    ("probes/confine/calls.py", "row left out: None", '"select": (23, None)'): "23 is allowed on aarch64 anyway: dup",
    ("probes/confine/calls.py", "row left out: None", '"access": (21, None)'): "21 is allowed on aarch64 anyway: epoll_ctl",
    ("diagnose/sweep/hook.py", "left out: time.sleep(_POLL_S / 10)", "time.sleep(_POLL_S / 10)"): "looks more often, with the same end",
    ("diagnose/sweep/config.py", "row left out: 11", "sys.version_info >= (3, 11)"): "told apart only by Python before 3.11",
    ("observer/apart/run.py", "left out: time.sleep(0.002)", "time.sleep(0.002)"): "looks more often, with the same end",
    ("observer/apart/run.py", 'left out: warnings.simplefilter("ignore", DeprecationWarning)', "warnings.simplefilter("): (
        "before Python 3.12 nothing warns of a fork"),
}  # fmt: skip


def why_equivalent(mutant: Mutant, whole: bytes) -> str:
    """Why a mutant of a file changes nothing; "" where it is not known to be such a one."""
    for (file, what, text), why in EQUIVALENT.items():
        if (file, what) == (mutant.file, mutant.what):
            begin = whole.find(text.encode())
            if begin <= mutant.begin < begin + len(text.encode()):
                return why
    return ""
