/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * awake: detects when all threads of a process sleep.
 *
 * A thread is awake while it runs, is runnable, waits for a device or is stopped. Each is counted
 * once, whatever edges are missed, as its counted state is stored with the thread. A thread not
 * seen to sleep counts as awake until it is. A new thread becomes known when it first leaves its
 * CPU, or wakes another thread of its process: then not all slept, and nothing is reported. So
 * errors are towards awake.
 *
 * Cost: a hash look-up for each sleep and each wake-up: 6 % of a switch, 15 % of a wake-up.
 */
#ifndef RS_AWAKE_BPF_H
#define RS_AWAKE_BPF_H
#include "common.bpf.h"

#ifndef RS_MIN_ASLEEP_NS
#define RS_MIN_ASLEEP_NS 200000 /* shorter stretches are not reported: at most 5,000 events a second per process */
#endif
#define RS_TASK_ASLEEP 0x1 /* alone: not for a device or a disk (0x2), nor stopped */

/*
 * Number of awake threads of a process, and since when there is none; 0 while there is one. Two
 * CPUs that change the count at once may leave an impossible time; the next change clears it. When
 * full, the entry least recently used is evicted.
 */
struct rs_awake {
	u64 asleep_ns;
	u32 threads;
	s32 known; /* number of its threads in rs_threads, and one more if others remain when the first thread has ended */
};
BPF_TABLE("lru_hash", u32, struct rs_awake, rs_awake, RS_MAX_PROCESSES);

/*
 * Count a thread as awake from now on. If it is the first one, the stretch in which all slept ends;
 * it is reported if `slept`, that is, if no thread of the process was seen to run until now.
 */
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

/*
 * Count a thread as asleep or ended. If it was the last awake one, all sleep from now on. Processes
 * never seen awake are not reported.
 */
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
