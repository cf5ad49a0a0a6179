/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Python stacks as numbers: walk the current thread's frames (walk.bpf.h), hash them, store each
 * distinct stack once.
 *
 * User space registers threads with Python state (rs_pythreads) and the memory layout of their
 * interpreter (rs_interpreters), and resolves names. A stack that is already in the map costs the
 * walk and a hash, no copy.
 */
#ifndef RS_STACK_BPF_H
#define RS_STACK_BPF_H

#include "common.bpf.h"
#include "walk.bpf.h"

#define RS_HAVE_UNWINDER 1
#ifndef RS_MAX_STACKS
#define RS_MAX_STACKS 4096 /* distinct (code, line) stacks; a DDP job has 50-500; the least recently seen ones are evicted: 8.4 MB */
#endif

/* A thread's PyThreadState, and the thread id that it must contain. */
struct rs_pythread {
	u64 tstate;
	u64 expected;
};
BPF_HASH(rs_pythreads, u32, struct rs_pythread, 8192); /* 8 for each process: a rank has 5-15, a worker 2-4 */
BPF_HASH(rs_interpreters, u32, struct rs_offsets, RS_MAX_PROCESSES);
BPF_TABLE("lru_hash", u64, struct rs_stack, rs_stacks, RS_MAX_STACKS);

/*
 * Too large for the BPF stack. Slot RS_UNDISTURBED is used with interrupts off (sched_switch) and
 * from the sampling timer, which cannot interrupt it on the same CPU. A uprobe runs with both on:
 * it uses slot RS_PREEMPTIBLE, which the timer does not use, and which only another uprobe on this
 * CPU can overwrite. So each writes its mark before it walks and checks it afterwards.
 */
#define RS_UNDISTURBED 0
#define RS_PREEMPTIBLE 1
BPF_PERCPU_ARRAY(rs_scratch, struct rs_stack, RS_SLOTS);
BPF_PERCPU_ARRAY(rs_scratch_owner, u64, 1);

static __always_inline int rs_is_python(u32 tid)
{
	return rs_pythreads.lookup(&tid) != 0;
}

static __always_inline u64 rs_mix(u64 hash, u64 word)
{
	hash ^= word;
	hash *= 0x9e3779b97f4a7c15ULL;
	return hash ^ (hash >> 29);
}

static __always_inline u64 rs_python_stack_in(int slot, u32 tid, u32 tgid)
{
	struct rs_pythread *thread = rs_pythreads.lookup(&tid);
	struct rs_offsets *offsets = rs_interpreters.lookup(&tgid);
	struct rs_stack *stack = rs_scratch.lookup(&slot);
	if (!thread || !offsets || !stack)
		return 0;
	int status = rs_walk(offsets, thread->tstate, thread->expected, stack, slot);
	if (status != RS_WALK_OK) {
		rs_count(status == RS_WALK_STALE_TSTATE ? RS_C_WALK_STALE
			 : status == RS_WALK_NO_FRAME   ? RS_C_WALK_NO_FRAME
							: RS_C_WALK_FAILED);
		return 0;
	}
	rs_count(RS_C_WALK_OK);
	if (stack->truncated)
		rs_count(RS_C_WALK_TRUNCATED);
	u64 hash = rs_mix(tgid, stack->n);
	for (u32 i = 0; i < RS_MAX_FRAMES; i++) {
		/* Load `n` anew: clang would count down from it, and verifiers before Linux 6.12 lose the bound of such a loop. */
		if (i >= RS_FORGET(stack->n))
			break;
		hash = rs_mix(hash, stack->frames[i].code);
		hash = rs_mix(hash, (u64)(u32)stack->frames[i].lasti << 32 | stack->frames[i].checksum);
	}
	hash |= 1; /* 0 means none */
	if (!rs_stacks.lookup(&hash) && rs_stacks.update(&hash, stack))
		rs_count(RS_C_STACK_MAP_FULL);
	return hash;
}

/*
 * Return the current thread's Python stack; 0 where it has none or it could not be walked (and
 * counted). Not from a uprobe.
 */
static __always_inline u64 rs_python_stack(u32 tid, u32 tgid)
{
	return rs_python_stack_in(RS_UNDISTURBED, tid, tgid);
}

/* Return the current thread's Python stack, from a uprobe. */
static __always_inline u64 rs_python_stack_preemptible(u32 tid, u32 tgid)
{
	int zero = 0;
	u64 *owner = rs_scratch_owner.lookup(&zero);
	u64 me = (u64)tgid << 32 | tid;
	if (!owner)
		return 0;
	*(volatile u64 *)owner = me;
	u64 stack = rs_python_stack_in(RS_PREEMPTIBLE, tid, tgid);
	if (*(volatile u64 *)owner == me)
		return stack;
	*(volatile u64 *)owner = 0; /* another uprobe that walked meanwhile may have read what this walk wrote: it must not find its mark */
	rs_count(RS_C_WALK_DISTURBED);
	return 0;
}

#endif
