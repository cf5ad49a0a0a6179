"""System calls allowed to a process that reads other users' data: those that change nothing outside
the process.

`ALLOWED` and `CHECKED`: name -> numbers on x86-64 and aarch64, None where a machine has no such
call. Sources: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h. Found with
strace over record, diagnose, watch, top, sweep and the tests; the calls that other versions of the
same C libraries make for the same purpose are listed with them.
"""

from __future__ import annotations

Numbers = tuple[int | None, int | None]

# Allowed with any arguments. The most frequent come first, as Linux before 5.11 compares one after
# another.
ALLOWED: dict[str, Numbers] = {
    # read and write open descriptors
    "pread64": (17, 67), "read": (0, 63), "close": (3, 57), "write": (1, 64), "readv": (19, 65), "preadv": (295, 69),
    "preadv2": (327, 286), "writev": (20, 66), "pwrite64": (18, 68), "lseek": (8, 62), "ftruncate": (77, 46),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "close_range": (436, 436), "memfd_create": (319, 279),
    # threads, memory, time and signals of its own
    "futex": (202, 98), "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226),
    "madvise": (28, 233), "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101), "gettimeofday": (96, 169), "time": (201, None), "sched_yield": (24, 124), "rseq": (334, 293),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "arch_prctl": (158, None), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "exit": (60, 93), "exit_group": (231, 94),
    # The kernel's own way back from a probe (Linux 6.11, 6.18): where this process runs a probed function, a refusal crashes it.
    "uretprobe": (335, None), "uprobe": (336, None),
    # wait for open descriptors
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22), "eventfd2": (290, 19), "pipe2": (293, 59),
    # inherited sockets: each is connected to one process of ours, or to the kernel. No other can be
    # created.
    "sendmsg": (46, 211), "recvmsg": (47, 212), "recvfrom": (45, 207), "getsockname": (51, 204), "getpeername": (52, 205),
    "getsockopt": (55, 209), "shutdown": (48, 210),
    # names and properties of files
    "newfstatat": (262, 79), "fstat": (5, 80), "stat": (4, None), "lstat": (6, None), "statx": (332, 291), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents64": (217, 61), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439),
    "statfs": (137, 43), "fstatfs": (138, 44), "getcwd": (79, 17),
    # information on processes and the host
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158),
    "getpgid": (121, 155), "getpgrp": (111, None), "getsid": (124, 156), "getpriority": (140, 141), "getrusage": (98, 165),
    "getrlimit": (97, 163), "times": (100, 153), "sysinfo": (99, 179), "uname": (63, 160), "capget": (125, 90),
    "getcpu": (309, 168), "sched_getaffinity": (204, 123), "sched_getscheduler": (145, 120), "sched_getparam": (143, 121),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getrandom": (318, 278),
}  # fmt: skip
# Allowed depending on their arguments (seccomp.py).
CHECKED: dict[str, Numbers] = {
    "openat": (257, 56), "open": (2, None), "ioctl": (16, 29), "bpf": (321, 280), "fcntl": (72, 25), "sendto": (44, 206),
    "clone": (56, 220), "prlimit64": (302, 261), "prctl": (157, 167),
}  # fmt: skip
# From here on numbers are the same on all machines, and C libraries have a fallback for kernels
# without the call.
NEW_FROM = 424

# bpf(2) on inherited maps: look up, update, delete, next key, get info, look up a batch.
BPF_COMMANDS = (1, 2, 3, 4, 15, 24)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GET_SEALS: no lock, no lease, no signal to others.
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1034)
PRCTL_OPTIONS = (15, 16, 3)  # PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE: not PR_SET_DUMPABLE or PR_SET_PDEATHSIG
# FIONBIO, FIOCLEX, FIONCLEX and TCGETS of Python's own files; SIOCETHTOOL; NS_GET_USERNS, NS_GET_OWNER_UID
IOCTLS = (0x5401, 0x5421, 0x8946, 0x5451, 0x5450, 0xB701, 0xB704)
# Requests to GPU drivers (_IOWR with 'F'), by type and direction: consoles and frame buffers have
# the type without the direction.
GPU_IOCTL_MASK, GPU_IOCTL = 0xC000FF00, 0xC0004600
# SECCOMP_IOCTL_NOTIF_RECV, _SEND, _ADDFD, for the program that opens GPUs
LISTENER_IOCTLS = (0xC0502100, 0xC0182101, 0x40182103)
