/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * sampler: which Python function every thread with Python state is running, 99 times a second on each CPU.
 *
 * A software clock event on every CPU; a CPU that runs nothing of interest costs two look-ups per tick. Stacks of threads
 * that wait are taken by sched.bpf.c when they leave the CPU.
 *
 * Cost: 4-9 us per stack of 10 frames; see `scripts/bench overhead`.
 */
#include "stack.bpf.h"
#include <uapi/linux/bpf_perf_event.h>

int rs_sample(struct bpf_perf_event_data *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32, tid = (u32)id;
	if (!rs_role(tgid) || !rs_is_python(tid))
		return 0;
	struct rs_event event = {
		.ts_ns = bpf_ktime_get_ns(),
		.arg = (s64)PT_REGS_IP(&ctx->regs),
		.tid = tid,
		.tgid = tgid,
		.type = RS_EV_SAMPLE,
	};
	event.stack = rs_python_stack(tid, tgid);
	rs_emit(&event);
	return 0;
}
