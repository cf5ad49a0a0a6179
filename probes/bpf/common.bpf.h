/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Shared by all Rankscope probes: watched processes, the event ring, counters of early returns.
 *
 * All probes of one observer are compiled as one translation unit (loader.py joins the files), so
 * that they share these maps. No kernel structure is accessed by a header's offset: only tracepoint
 * arguments, pt_regs, perf-event context and helpers; further offsets come from the running
 * kernel's BTF when programs are loaded.
 */
#ifndef RS_COMMON_BPF_H
#define RS_COMMON_BPF_H

#include "kernel.bpf.h"

/*
 * The n-th number of a program that is derived from another by its numbers alone while loading
 * (variants.py).
 */
#define RS_NUMBERS 0x52530000
#define RS_NUMBER(n)                                                                                                           \
	({                                                                                                                     \
		u64 _rs_number;                                                                                                \
		asm("%0 = %1" : "=r"(_rs_number) : "i"(RS_NUMBERS + (n)));                                                     \
		_rs_number;                                                                                                    \
	})

/* Number of the attachment point: a program with one counter per point is loaded anew for each. */
#define RS_PLACE RS_NUMBER(0xffff)

/*
 * Numbers that depend on the host are filled in the same way: loader.py defines RS_TASK_FILES and
 * the like as RS_NUMBER(0x8000) and up. The compiler does not know them, but the verifier does: it
 * prunes branches on them, including helpers that this kernel lacks.
 */

#ifndef RS_RING_PAGES
#define RS_RING_PAGES 512 /* 2 MiB: 32,768 events, 4 s of 8 ranks at 1,000 events/s each between two drains of 0.25 s */
#endif
#ifndef RS_MAX_PROCESSES
#define RS_MAX_PROCESSES 1024 /* 16 ranks with 60 processes each on the largest hosts known */
#endif
#ifndef RS_MAX_THREADS
#define RS_MAX_THREADS 32768 /* 160 threads per process after `import torch` on a 192-core host (py-spy #872), x 200 */
#endif

enum rs_event_type {
	RS_EV_OFFCPU = 1, /* a thread was switched out and in again: what = syscall, arg = its first argument, aux = state | waker << 8 */
	RS_EV_SAMPLE = 2, /* a thread was sampled while running: arg = user instruction pointer, or RS_IN_KERNEL */
	RS_EV_CALL = 3,   /* a library function was entered and left: what = row of the call table, arg = its argument */
	RS_EV_FILE = 4,   /* a read, write or sync: what = operation | file type << 8, arg = bytes or -errno, aux = device */
	RS_EV_EXIT = 5,   /* a watched process ended: arg = its wait status, -1 unknown */
	RS_EV_NATIVE = 6, /* a thread of a rank without Python state was sampled while running: arg = user instruction pointer, or RS_IN_KERNEL */
	RS_EV_IDLE = 7,   /* all threads of a process slept: arg = the thread whose wake-up ended it; tid = 0 */
	RS_EV_LAUNCH = 8, /* a GPU kernel is launched: what = which argument `stack` is, 0: a graph, arg = where the call returns to */
};

/* 56 bytes: with the ring's 8-byte header one event is one cache line, and user space reads them as one array. */
struct rs_event {
	u64 ts_ns;    /* start of the interval, CLOCK_MONOTONIC */
	u64 dur_ns;   /* its length */
	u64 ready_ns; /* OFFCPU: the part of it spent runnable, waiting for a CPU. CALL, LAUNCH: Python stack of the call site, 0: unknown */
	u64 stack;    /* Python stack id, 0 if none. CALL: communicator, stream or event. LAUNCH: the function that was passed */
	s64 arg;
	u32 tid;
	u32 tgid;
	u16 type;
	u16 what;
	u32 aux;
};

BPF_RINGBUF_OUTPUT(rs_events, RS_RING_PAGES);

enum rs_process_role {
	RS_ROLE_RANK = 1,
	RS_ROLE_MEMBER = 2, /* a process that belongs to a rank: a data-loader worker */
};
/* tgid -> enum rs_process_role. Written by user space only. */
BPF_HASH(rs_targets, u32, u32, RS_MAX_PROCESSES);

/* One slot per counter below, summed over CPUs by user space. */
enum rs_counter {
	RS_C_RING_FULL,
	RS_C_THREAD_MAP_FULL,
	RS_C_CALL_MAP_FULL,
	RS_C_CALL_UNMATCHED,
	RS_C_FILE_MAP_FULL,
	RS_C_FILE_NO_DEVICE,
	RS_C_TAKER_MAP_FULL,
	RS_C_STACK_MAP_FULL,
	RS_C_WALK_OK,
	RS_C_WALK_NO_FRAME,
	RS_C_WALK_STALE,
	RS_C_WALK_FAILED,
	RS_C_WALK_TRUNCATED,
	RS_C_NEGATIVE_TIME,
	RS_C_SHORT,
	RS_C_WALK_DISTURBED,
	RS_C_CALL_SITE_MAP_FULL,
	RS_C_ARRIVAL_UNSEEN, /* sched: a thread left whose arrival was not seen */
	RS_C_LEAVING_UNSEEN, /* sched: a thread arrived whose departure was not seen */
	RS_C_WAKE_UNSEEN,
	RS_C_CALL_SHARE_FULL, /* calls: the process reached its limit of calls in progress; only its own are lost */
	RS_C_TAKER_NEW, /* sched: a pair that was not in its map; more of these than the map can hold evicted others */
	RS_C_THREAD_SHARE_FULL, /* sched: the process reached its limit of threads; only its own are lost */
	RS_C_COUNT,
};
BPF_PERCPU_ARRAY(rs_counters, u64, RS_C_COUNT);

static __always_inline void rs_count(int which)
{
	u64 *slot = rs_counters.lookup(&which);
	if (slot)
		*slot += 1;
}

static __always_inline u32 rs_role(u32 tgid)
{
	u32 *role = rs_targets.lookup(&tgid);
	return role ? *role : 0;
}

/* User space drains on a timer; a wake-up per event would cost more than the event. */
static __always_inline void rs_emit(struct rs_event *event)
{
	if (rs_events.ringbuf_output(event, sizeof(*event), BPF_RB_NO_WAKEUP))
		rs_count(RS_C_RING_FULL);
}

#endif
