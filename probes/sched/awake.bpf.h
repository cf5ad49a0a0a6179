/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * awake: when all threads of a process sleep.
 *
 * A thread is awake while it runs, could run, waits for a device or is stopped. Each is counted once, whatever edges are not seen: what it
 * was counted as lies with the thread. A thread that was not seen to sleep is awake until it is. A new thread is known when it first
 * leaves its CPU, or wakes another of its process: then all were not asleep, and nothing is told. So what is missed errs towards awake.
 *
 * Cost: a look-up in a hash for each sleep and each wake-up: 6 % of a switch, 15 % of a wake-up.
 */
#ifndef RS_AWAKE_BPF_H
#define RS_AWAKE_BPF_H
#include "common.bpf.h"

#ifndef RS_MIN_ASLEEP_NS
#define RS_MIN_ASLEEP_NS 200000 /* shorter stretches are not told: at most 5,000 events a second of each process */
#endif
#define RS_TASK_ASLEEP 0x1 /* alone: not for a device or a disk (0x2), nor stopped */

/*
 * How many threads of a process are awake, and since when none is; 0 while one is. Two CPUs that change the count at once may leave a
 * time that is none; the next change clears it. Who was not looked at for longest goes where there are too many.
 */
struct rs_awake {
	u64 asleep_ns;
	u32 threads;
	s32 known; /* how many of its threads are in rs_threads, and more that are there still when the first one has ended */
};
BPF_TABLE("lru_hash", u32, struct rs_awake, rs_awake, RS_MAX_PROCESSES);

/* A thread is awake from now on, and counted. If it is the first one, the stretch for which all slept is over; told where `slept` is true,
 * that is, where nobody of the process was seen to run until now. */
static __always_inline void rs_awakes(u32 tgid, u32 tid, u64 now, u32 *counted, int slept)
{
	if (*counted)
		return;
	struct rs_awake zero = {};
	struct rs_awake *process = rs_awake.lookup_or_try_init(&tgid, &zero);
	if (!process) {
		rs_count(RS_C_THREAD_MAP_FULL);
		return;
	}
	*counted = 1;
	__sync_fetch_and_add(&process->threads, 1);
	u64 since = process->asleep_ns;
	process->asleep_ns = 0;
	if (!slept || !since || process->threads != 1 || now < since + RS_MIN_ASLEEP_NS)
		return;
	struct rs_event event = {
		.ts_ns = since, .dur_ns = now - since, .arg = tid, .tgid = tgid, .type = RS_EV_IDLE,
	};
	rs_emit(&event);
}

/* It sleeps, or is no more. If it was the last one awake, all sleep from now on. Of a process that was never seen awake nothing is said. */
static __always_inline void rs_sleeps(u32 tgid, u64 now, u32 *counted)
{
	struct rs_awake *process = rs_awake.lookup(&tgid);
	if (!process)
		return;
	if (*counted)
		__sync_fetch_and_add(&process->threads, -1);
	*counted = 0;
	process->asleep_ns = process->threads ? 0 : now;
}

#endif
