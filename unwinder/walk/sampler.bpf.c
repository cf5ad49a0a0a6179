/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * sampler: the Python function that each running thread with Python state is in, 99 times a second
 * on each CPU; for other threads of a rank (autograd, watchdogs, thread pools) the instruction
 * pointer, which user space resolves. In the kernel it is the system call instead, if it is in one.
 *
 * A software clock event on every CPU; a CPU that runs nothing of interest costs two look-ups per
 * tick. Stacks of waiting threads are taken by sched.bpf.c when they leave the CPU.
 *
 * Cost: 4-9 us per stack of 10 frames; see `scripts/bench overhead`.
 */
#include "registers.bpf.h"
#include "stack.bpf.h"

#define RS_IN_KERNEL (1ULL << 63) /* and the number of the system call, or RS_NO_CALL */

int rs_sample(struct bpf_perf_event_data *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32, tid = (u32)id;
	u32 role = rs_role(tgid);
	int python = rs_is_python(tid);
	if (!role || (!python && role != RS_ROLE_RANK)) /* helper threads of loader workers are not sampled */
		return 0;
	u64 place = PT_REGS_IP(&ctx->regs);
	if (place & RS_IN_KERNEL)
		place = RS_IN_KERNEL | rs_system_call(rs_saved_registers());
	struct rs_event event = {
		.ts_ns = bpf_ktime_get_ns(),
		.arg = (s64)place,
		.tid = tid,
		.tgid = tgid,
		.type = python ? RS_EV_SAMPLE : RS_EV_NATIVE,
	};
	if (python)
		event.stack = rs_python_stack(tid, tgid);
	rs_emit(&event);
	return 0;
}
