/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * registers: the system call that the current thread is in, from the registers saved when it entered the kernel.
 */
#ifndef RS_REGISTERS_BPF_H
#define RS_REGISTERS_BPF_H
#include "common.bpf.h"

#define RS_NO_CALL 0xffff /* in none: an exception, as for a page, or an interrupt */

/* By number (include/uapi/linux/bpf.h): helpers.h of older bcc does not name them. */
static void *(*rs_current_task_btf)(void) = (void *)158;
static void *(*rs_task_pt_regs)(void *task) = (void *)175;

static __always_inline void *rs_saved_registers(void)
{
	void *stack = 0;
	if (!RS_TASK_STACK)
		return rs_task_pt_regs(rs_current_task_btf());
	/* Before Linux 5.15: what task_pt_regs() computes there, the end of the kernel's stack less the registers. */
	bpf_probe_read_kernel(&stack, sizeof(stack), (void *)bpf_get_current_task() + RS_TASK_STACK);
	return stack + RS_STACK_BYTES - RS_REGISTERS_BYTES;
}

static __always_inline u16 rs_system_call(void *regs)
{
	u32 call = 0; /* -1 outside system calls */
	bpf_probe_read_kernel(&call, sizeof(call), regs + RS_SAVED_CALL);
	return call > 0xfffe ? RS_NO_CALL : (u16)call;
}

#endif
