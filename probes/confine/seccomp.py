"""A filter of system calls, for a process that reads what others wrote: it may read and count, and change nothing outside itself.

Listed is what is refused, with EPERM, not what is allowed: which calls a C library, numpy or a GPU's library makes differs from host to
host and year to year, and a list of those would end windows on hosts that nobody tested. What is refused: to start a program or a process,
to touch other processes, to change the file system, to be somebody else, to enter namespaces, to reach a network, to load
anything into the kernel, and what is a way round these. Python itself goes on as before.

In: nothing. Out: a classic BPF program for seccomp(2). Sources: include/uapi/linux/{seccomp,filter,audit}.h; numbers of calls from
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Name: numbers on x86-64 and aarch64; 0 where a machine has no such call. (Number 0 is read(2) and io_setup(2): neither is refused.)
REFUSED = {
    # programs and processes
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, 0), "vfork": (58, 0), "ptrace": (101, 117), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "kcmp": (312, 272), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "personality": (135, 92),
    # who one is
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151), "setfsgid": (123, 152), "capset": (126, 91),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40), "umount2": (166, 39),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "quotactl": (179, 60), "quotactl_fd": (443, 443), "swapon": (167, 224),
    "swapoff": (168, 225), "acct": (163, 89),
    # the file system
    "creat": (85, 0), "mkdir": (83, 0), "mkdirat": (258, 34), "rmdir": (84, 0), "mknod": (133, 0), "mknodat": (259, 33),
    "symlink": (88, 0), "symlinkat": (266, 36), "link": (86, 0), "linkat": (265, 37), "rename": (82, 0), "renameat": (264, 38),
    "renameat2": (316, 276), "unlink": (87, 0), "unlinkat": (263, 35), "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "chown": (92, 0), "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "truncate": (76, 45),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "utime": (132, 0), "utimes": (235, 0), "futimesat": (261, 0), "utimensat": (280, 88),
    # memory and queues that others share with whoever asks for them
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # networks; sockets come from the process that has the rights
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    # the kernel
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "iopl": (172, 0), "ioperm": (173, 0), "modify_ldt": (154, 0),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "sethostname": (170, 161), "setdomainname": (171, 162),
    "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "vhangup": (153, 58), "seccomp": (317, 277),
}  # fmt: skip
# The kernel has none, as far as the caller can see: then C libraries use the older call, whose arguments can be looked at.
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}
_CLONE, _OPEN, _OPENAT, _BPF, _IOCTL = (56, 220), (2, 0), (257, 56), (321, 280), (16, 29)
_CLONE_THREAD = 0x10000
_O_WRONLY, _O_RDWR, _O_CREAT, _O_TRUNC, _O_TMPFILE = 0o1, 0o2, 0o100, 0o1000, 0o20000000
# bpf(2) on maps that were handed over: look up, update, delete, next key, what something is, look up many.
_BPF_COMMANDS = (1, 2, 3, 4, 15, 24)
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = (
    0x20,
    0x15,
    0x35,
    0x45,
    0x06,
)  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, |JGE|K, |JSET|K, BPF_RET|K
_KILL, _REFUSE, _ASK, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # struct seccomp_data, little-endian
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_X32 = 0x40000000  # the other system calls of x86-64: the same under other numbers


@dataclass(frozen=True, slots=True)
class _Step:
    operation: int
    value: int
    if_true: int = 0
    if_false: int = 0

    def pack(self) -> bytes:
        return struct.pack("<HBBI", self.operation, self.if_true, self.if_false, self.value)


def program(*, writing: bool, asking: bool = False, machine: str | None = None) -> bytes:
    """The filter. `writing`: whether a file or device that is there may be opened to read and write, as GPUs' libraries do. `asking`:
    whether, where it may not, a listener is asked, who may open it (opener.py).

    ValueError for a machine whose calls are not known here.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        raise ValueError(f"system calls of {machine or platform.machine()} are not known")
    return b"".join(step.pack() for step in _steps(writing, asking, *known))


def allow_all() -> bytes:
    """A filter that refuses nothing, to see what a kernel can do."""
    return _Step(_RETURN, _ALLOW).pack()


def _steps(writing: bool, asking: bool, column: int, machine: int) -> Iterator[_Step]:
    refuse, absent = _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS
    yield _Step(_LOAD, _MACHINE_AT)
    yield _Step(_EQUAL, machine, 1, 0)
    yield _Step(_RETURN, _KILL)
    yield _Step(_LOAD, _NUMBER_AT)
    yield _Step(_AT_LEAST, _X32, 0, 1)
    yield _Step(_RETURN, refuse)
    for answer, calls in ((refuse, REFUSED), (absent, ABSENT)):
        for numbers in calls.values():
            if numbers[column]:
                yield _Step(_EQUAL, numbers[column], 0, 1)
                yield _Step(_RETURN, answer)
    checks = [_Step(_ANY_BIT, _O_WRONLY | _O_CREAT | _O_TRUNC | _O_TMPFILE, 0, 1), _Step(_RETURN, refuse)]
    if not writing:
        checks += [_Step(_ANY_BIT, _O_RDWR, 0, 1), _Step(_RETURN, _ASK if asking else refuse)]
    for number, argument in ((_OPEN[column], 1), (_OPENAT[column], 2)):
        if number:
            yield from _argument(number, argument, checks)
    yield from _argument(_CLONE[column], 0, [_Step(_ANY_BIT, _CLONE_THREAD, 1, 0), _Step(_RETURN, refuse)])
    allowed = [_Step(_EQUAL, one, len(_BPF_COMMANDS) - place, 0) for place, one in enumerate(_BPF_COMMANDS)]
    yield from _argument(_BPF[column], 0, [*allowed, _Step(_RETURN, refuse)])
    for request in _TERMINAL_INPUT:
        yield from _argument(_IOCTL[column], 1, [_Step(_EQUAL, request, 0, 1), _Step(_RETURN, refuse)])
    yield _Step(_RETURN, _ALLOW)


def _argument(number: int, which: int, checks: list[_Step]) -> Iterator[_Step]:
    """`checks` of an argument's lower half, for this call alone; what they let through is asked nothing more of the argument."""
    yield _Step(_EQUAL, number, 0, len(checks) + 2)
    yield _Step(_LOAD, _ARGUMENTS_AT + 8 * which)
    yield from checks
    yield _Step(_LOAD, _NUMBER_AT)
