"""Every system call of x86-64 by its number, and whether a process that reads what others wrote may make it, and why.

Written by hand from arch/x86/entry/syscalls/syscall_64.tbl (Linux 6.18), not from the product's list: this is what that list is compared
with. A number that the kernel adds is refused until it has a line here.
"""

from __future__ import annotations

_TABLE = """
0 read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64
18 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise shmget shmat shmctl dup dup2 pause nanosleep
36 getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname
52 getpeername socketpair setsockopt getsockopt clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd
70 msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink
88 symlink readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace getuid syslog getgid
105 setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid
120 getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack
132 utime mknod uselib personality ustat statfs fstatfs sysfs getpriority setpriority sched_setparam sched_getparam
144 sched_setscheduler sched_getscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall
152 munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2
167 swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module get_kernel_syms query_module
179 quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr fsetxattr getxattr lgetxattr
193 fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr tkill time futex sched_setaffinity
204 sched_getaffinity set_thread_area io_setup io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create
214 epoll_ctl_old epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create
223 timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres clock_nanosleep exit_group
232 epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy mq_open mq_unlink mq_timedsend mq_timedreceive
244 mq_notify mq_getsetattr kexec_load waitid add_key request_key keyctl ioprio_set ioprio_get inotify_init inotify_add_watch
255 inotify_rm_watch migrate_pages openat mkdirat mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat
268 fchmodat faccessat pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages utimensat
281 epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4 signalfd4 eventfd2 epoll_create1 dup3
293 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open recvmmsg fanotify_init fanotify_mark prlimit64
303 name_to_handle_at open_by_handle_at clock_adjtime syncfs sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp
313 finit_module sched_setattr sched_getattr renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd
324 membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
424 pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount fspick pidfd_open
435 clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset
445 landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv set_mempolicy_home_node cachestat fchmodat2
453 map_shadow_stack futex_wake futex_wait futex_requeue statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal
463 setxattrat getxattrat listxattrat removexattrat open_tree_attr file_getattr file_setattr listns
"""
NUMBERS: dict[str, int] = {
    name: int(line.split()[0]) + place
    for line in _TABLE.strip().splitlines()
    for place, name in enumerate(line.split()[1:])
}

_ALLOWED = {
    "reads and writes what is open already": """
        read write close lseek pread64 pwrite64 readv writev preadv preadv2 dup dup2 dup3 close_range""",
    "a file in memory, for what it found": "memfd_create ftruncate",
    "its own memory": "mmap mprotect munmap brk mremap madvise",
    "its own threads": "futex sched_yield set_robust_list set_tid_address rseq arch_prctl exit exit_group",
    "its own signals": "rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall",
    "where it runs a function with a probe, the kernel makes it make these": "uretprobe uprobe",
    "looks at a clock, or sleeps": "nanosleep gettimeofday time clock_gettime clock_getres clock_nanosleep",
    "waits for descriptors, or makes some that only it has": """
        poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 pipe2""",
    "speaks with whom it was connected": "sendmsg recvmsg recvfrom shutdown getsockname getpeername getsockopt",
    "looks at names": """
        stat fstat lstat access readlink getcwd statfs fstatfs getdents64 newfstatat readlinkat faccessat statx faccessat2""",
    "reads what is known of processes and of the host": """
        getpid gettid getppid getpgrp getpgid getsid getuid getgid geteuid getegid getresuid getresgid getgroups capget getrlimit
        getrusage times sysinfo uname getpriority sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min
        sched_getaffinity getcpu getrandom""",
}
_CHECKED = {
    "to read, not to write": "open openat",
    "questions, not orders": "ioctl fcntl prctl bpf prlimit64",
    "without an address": "sendto",
    "a thread, not a process": "clone",
}
_REFUSED = {
    "starts a program or a process": "fork vfork execve execveat uselib clone3",
    "waits for processes, and it has none": "wait4 waitid",
    "touches another process": """
        kill tkill tgkill ptrace process_vm_readv process_vm_writev rt_sigqueueinfo rt_tgsigqueueinfo kcmp migrate_pages move_pages
        setpriority sched_setparam sched_setscheduler sched_setaffinity sched_setattr ioprio_set get_robust_list setpgid setsid
        pidfd_send_signal pidfd_open pidfd_getfd process_madvise process_mrelease""",
    "makes it somebody else": """
        setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset personality seccomp lsm_set_self_attr""",
    "gets round a limit": "setrlimit",
    "enters a namespace": "unshare setns chroot",
    "mounts": """
        mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr open_tree_attr swapon swapoff
        quotactl quotactl_fd acct nfsservctl""",
    "changes files": """
        truncate rename mkdir rmdir creat link unlink symlink chmod fchmod chown fchown lchown utime mknod setxattr lsetxattr fsetxattr
        removexattr lremovexattr fremovexattr mkdirat mknodat fchownat futimesat unlinkat renameat linkat symlinkat fchmodat utimes
        utimensat fallocate renameat2 copy_file_range fchmodat2 setxattrat removexattrat file_setattr umask""",
    "keeps others from a file, or slows them": """
        flock fsync fdatasync sync syncfs sync_file_range readahead fadvise64 fanotify_init fanotify_mark""",
    "opens what has no name, past what is looked at": "name_to_handle_at open_by_handle_at openat2",
    "makes a socket, or reaches anybody with one": """
        socket connect accept bind listen socketpair setsockopt accept4 sendmmsg recvmmsg getpmsg putpmsg""",
    "memory and queues that are shared with whoever asks": """
        shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open mq_unlink mq_timedsend
        mq_timedreceive mq_notify mq_getsetattr add_key request_key keyctl""",
    "changes the host": """
        syslog adjtimex settimeofday clock_settime clock_adjtime reboot sethostname setdomainname iopl ioperm modify_ldt vhangup sysfs
        ustat _sysctl kexec_load kexec_file_load init_module finit_module delete_module create_module get_kernel_syms query_module""",
    "a door to much of the kernel": """
        perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register io_setup io_destroy io_getevents io_submit io_cancel
        io_pgetevents lookup_dcookie memfd_secret""",
    "not needed: what is not needed is not allowed": """
        pipe msync mincore pause getitimer alarm setitimer sendfile getdents chdir fchdir rt_sigpending rt_sigtimedwait rt_sigsuspend
        sched_rr_get_interval mlock munlock mlockall munlockall getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
        set_thread_area get_thread_area epoll_create epoll_ctl_old epoll_wait_old remap_file_pages timer_create timer_settime
        timer_gettime timer_getoverrun timer_delete mbind set_mempolicy get_mempolicy ioprio_get inotify_init inotify_add_watch
        inotify_rm_watch splice tee vmsplice signalfd timerfd_create eventfd timerfd_settime timerfd_gettime signalfd4 inotify_init1
        pwritev sched_getattr membarrier mlock2 pwritev2 pkey_mprotect pkey_alloc pkey_free epoll_pwait2 landlock_create_ruleset
        landlock_add_rule landlock_restrict_self futex_waitv set_mempolicy_home_node cachestat map_shadow_stack futex_wake futex_wait
        futex_requeue statmount listmount lsm_get_self_attr lsm_list_modules mseal getxattrat listxattrat file_getattr listns""",
    "never was one": "afs_syscall tuxcall security vserver",
}


def _why(groups: dict[str, str]) -> dict[str, str]:
    return {name: why for why, names in groups.items() for name in names.split()}


ALLOWED, CHECKED, REFUSED = _why(_ALLOWED), _why(_CHECKED), _why(_REFUSED)
# Refused as if the kernel did not have it: where C libraries then do without.
ABSENT_FROM = 424
