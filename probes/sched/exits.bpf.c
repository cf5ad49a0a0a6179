/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * exits: reports that a watched process ended, and how. The part of sched.bpf.c that permanent
 * watching needs.
 *
 * Cost: runs when a thread of the host ends; one map look-up, 0.1-0.2 us.
 */
#include "common.bpf.h"

int rs_exit(struct rs_at__sched__sched_process_exit *args)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;
	if ((u32)id != tgid || !rs_role(tgid))
		return 0;
	s32 status = -1;
	if (RS_TASK_EXIT_CODE)
		bpf_probe_read_kernel(&status, sizeof(status), (void *)bpf_get_current_task() + RS_TASK_EXIT_CODE);
	struct rs_event event = {
		.ts_ns = bpf_ktime_get_ns(), .arg = status, .tid = tgid, .tgid = tgid, .type = RS_EV_EXIT,
	};
	rs_emit(&event);
	rs_targets.delete(&tgid); /* its id may be reused before user space handles the event */
	return 0;
}
