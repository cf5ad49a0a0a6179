/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * calls: entry and exit of chosen library functions: one event per call, or one sum per process.
 *
 * Which functions: table.py. programs.py generates small programs around the functions here:
 * rs_enter_N for each row, rs_leave_S for each scope, from few texts; launch rows have only
 * rs_enter_N, which counts. Functions that may throw have no return probe, which an exception does
 * not survive, but probes on their return instructions. Probes are on the library's inode, so
 * unwatched processes pay for the trap too; they are only counted.
 *
 * Cost: a uprobe is 1-2 us on bare metal and about 10 us in a nested virtual machine, twice per
 * call; so probe.py reads rs_call_hits and detaches a row that exceeds its budget from the files
 * whose functions are called too often: the program is loaded anew for each file, with its own
 * number, at no cost per call. The count per process, a map look-up at each end, was added later
 * and is not included.
 */
#include "common.bpf.h"

#ifndef RS_MAX_ROWS
#define RS_MAX_ROWS 256
#endif
#ifndef RS_CALLS_EACH
#define RS_CALLS_EACH 128 /* limit of calls in progress per process: twice 16 threads x 4 nested */
#endif

/* scope: the row, or one number for all rows of a role of which only the outermost call counts. */
struct rs_call {
	u32 tid, scope;
};
struct rs_call_entry {
	u64 ts_ns;
	u64 sp; /* at the function's entry: distinguishes the return of this call from those of nested calls */
	u64 caller; /* the return address, unless a return probe replaces it: once it is no longer on the stack, the call ended by an exception */
	u64 object;
	u64 shortest_ns; /* > 0: the call is added to a sum, and is an event only if it lasts at least this long */
	s64 arg;
	u32 row, aux;
	u32 tgid; /* process of the call: the id of a thread that ended in a call may belong to another process by now */
	u32 unused; /* no padding, which the verifier would reject as uninitialised */
};
/* Calls in progress. RS_MAX_PROCESSES x RS_CALLS_EACH, so that no process can fill it: 18 MB. */
BPF_HASH(rs_calls, struct rs_call, struct rs_call_entry, 131072);
/*
 * tgid -> number of its calls in progress, at most RS_CALLS_EACH. A thread that is killed in a
 * call, or jumps out of it, leaves its entry: user space removes those and corrects the number
 * (in_progress.py). RS_MAX_PROCESSES, and as many that have ended since.
 */
BPF_HASH(rs_calls_open, u32, s64, 2048);

/*
 * Traps by counter number: the first RS_MAX_ROWS count one row in all files; the further ones one
 * row in one file (attached.py). 32 KB per CPU: 24 files of 70 rows.
 */
#define RS_MAX_PLACES 2048
struct rs_hits {
	u64 watched, others; /* in watched processes, and in all others */
};
BPF_PERCPU_ARRAY(rs_call_hits, struct rs_hits, RS_MAX_PLACES);

/*
 * The call site in the job's own code. A separate program, attached to the entries of rows that
 * mark steps: it shares their trap, and the verifier checks the walk once instead of in every
 * rs_enter_N. The stack pointer, equal in both, is the key.
 */
struct rs_call_place {
	u64 sp;
	u64 tid;
};
/*
 * Calls in progress on threads with Python state; an entry of a call that ended by an exception is
 * evicted as the least recent one.
 */
BPF_TABLE("lru_hash", struct rs_call_place, u64, rs_call_sites, 4096);

#ifdef RS_HAVE_UNWINDER
int rs_call_site(struct pt_regs *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id, tgid = id >> 32;
	if (!rs_role(tgid) || !rs_is_python(tid))
		return 0;
	struct rs_call_place place = {.sp = PT_REGS_SP(ctx), .tid = tid};
	u64 stack = rs_python_stack_preemptible(tid, tgid);
	if (stack && rs_call_sites.update(&place, &stack))
		rs_count(RS_C_CALL_SITE_MAP_FULL);
	return 0;
}
#else
int rs_call_site(struct pt_regs *ctx)
{
	return 0; /* this build walks no stacks */
}
#endif

#define RS_DIRECTION_UNKNOWN 7 /* above all directions of libraries: limits the sums that a process can have per row */

struct rs_call_sum_key {
	u32 tgid;
	u16 row, aux;
};
struct rs_call_sum {
	u64 count, bytes, ns;
};
/*
 * Sums of calls. RS_MAX_PROCESSES x 128: a process has 30 such rows, 9 of them in 8 directions, and
 * 10 of launches. 12 MB. Sums of ended processes remain.
 */
BPF_HASH(rs_call_sums, struct rs_call_sum_key, struct rs_call_sum, 131072);

/* Count the trap, whichever process it is in; return whether that is watched. */
static __always_inline int rs_call_watched(u64 id)
{
	u32 watched = rs_role(id >> 32);
	int place = RS_PLACE;
	struct rs_hits *hits = rs_call_hits.lookup(&place);
	if (!hits)
		return watched != 0;
	if (watched)
		hits->watched += 1;
	else
		hits->others += 1;
	return watched != 0;
}

/*
 * Return the sum of a row in a process, created if missing; 0 where the map is full (and counted).
 */
static __always_inline struct rs_call_sum *rs_call_sum_of(u32 tgid, u32 row, u32 aux)
{
	struct rs_call_sum_key key = {.tgid = tgid, .row = row, .aux = aux};
	struct rs_call_sum zero = {};
	struct rs_call_sum *sum = rs_call_sums.lookup_or_try_init(&key, &zero);
	if (!sum)
		rs_count(RS_C_CALL_MAP_FULL);
	return sum;
}

/* Return the n-th argument, n > 6, of the function just entered. */
static __always_inline u64 rs_stack_argument(struct pt_regs *ctx, int n)
{
	u64 value = 0;
#ifdef RS_AARCH64
	if (n <= 8)
		return ctx->regs[n - 1];
	bpf_probe_read_user(&value, sizeof(value), (void *)(PT_REGS_SP(ctx) + 8 * (n - 9)));
#else
	bpf_probe_read_user(&value, sizeof(value), (void *)(PT_REGS_SP(ctx) + 8 * (n - 6)));
#endif
	return value;
}

/* A copy's direction as the caller passes it, which may be any number; copies.py knows five. */
static __always_inline u32 rs_direction(u64 said)
{
	u32 direction = (u32)said;
	return direction < RS_DIRECTION_UNKNOWN ? direction : RS_DIRECTION_UNKNOWN;
}

static __always_inline u64 rs_word(u64 address)
{
	u64 value = 0;
	bpf_probe_read_user(&value, sizeof(value), (void *)address);
	return value;
}

#ifdef RS_AARCH64
#define RS_FRAMES 32 /* frames of one stack that are examined */
#define RS_CODE 0xffffffffffffULL /* bits of an address in code; those above may be a signature (pointer authentication) */
#define RS_POPPED 0 /* bytes that are popped from the stack between entry and return */

/* Return the return address of a function just entered. */
static __always_inline u64 rs_caller(struct pt_regs *ctx)
{
	return ctx->regs[30] & RS_CODE;
}

/*
 * Return whether an outer call is still on the stack. A chain of pairs (next pair, return address)
 * begins at x29.
 */
static __always_inline int rs_encloses(struct pt_regs *ctx, u64 sp, u64 caller)
{
	u64 pair[2] = {ctx->regs[29], 0};
	for (int depth = 0; depth < RS_FRAMES; depth++) {
		if (pair[0] >= sp || bpf_probe_read_user(pair, sizeof(pair), (void *)pair[0]))
			return 0;
		if ((pair[1] & RS_CODE) == caller)
			return 1;
	}
	return 1; /* deeper than that: no evidence that it ended */
}
#else
#define RS_POPPED 8

static __always_inline u64 rs_caller(struct pt_regs *ctx)
{
	return rs_word(PT_REGS_SP(ctx));
}

static __always_inline int rs_encloses(struct pt_regs *ctx, u64 sp, u64 caller)
{
	return rs_word(sp) == caller;
}
#endif

/* Decrease the number of calls in progress. */
static __always_inline void rs_call_over(u32 tgid)
{
	s64 *open = rs_calls_open.lookup(&tgid);
	if (open)
		__sync_fetch_and_add(open, -1);
}

/*
 * Increase the number of calls in progress; return whether the limit allows it. Simultaneous CPUs
 * may each exceed it by one.
 */
static __always_inline int rs_call_begins(u32 tgid)
{
	s64 zero = 0;
	s64 *open = rs_calls_open.lookup_or_try_init(&tgid, &zero);
	if (!open) {
		rs_count(RS_C_CALL_MAP_FULL);
		return 0;
	}
	if (*open >= (s64)RS_CALLS_EACH) {
		rs_count(RS_C_CALL_SHARE_FULL);
		return 0;
	}
	__sync_fetch_and_add(open, 1);
	return 1;
}

static __always_inline int
rs_enter(struct pt_regs *ctx, u32 row, u32 scope, u64 shortest_ns, int throws, s64 arg, u32 aux, u64 object)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!rs_call_watched(id))
		return 0;
	u64 sp = PT_REGS_SP(ctx);
	u32 tgid = id >> 32;
	struct rs_call key = {.tid = (u32)id, .scope = scope};
	struct rs_call_entry *outer = rs_calls.lookup(&key);
	u32 before = outer ? outer->tgid : 0; /* owner of this entry: none, or a thread that had this id earlier and left the entry */
	if (outer && before == tgid) {
		if (sp < outer->sp && (!outer->caller || rs_encloses(ctx, outer->sp, outer->caller)))
			return 0; /* the stack grows downwards: this call is nested in the other one */
	} else if (!rs_call_begins(tgid)) {
		return 0;
	}
	struct rs_call_entry entry = {
		.ts_ns = bpf_ktime_get_ns(),
		.sp = sp,
		.caller = throws ? rs_caller(ctx) : 0,
		.object = object,
		.shortest_ns = shortest_ns,
		.arg = arg,
		.row = row,
		.aux = aux,
		.tgid = tgid,
	};
	if (rs_calls.update(&key, &entry)) { /* everything is as before */
		if (before != tgid)
			rs_call_over(tgid);
		rs_count(RS_C_CALL_MAP_FULL);
	} else if (before && before != tgid) {
		rs_call_over(before);
	}
	return 0;
}

/*
 * at_return 0: from a return probe, after the return address was removed from the stack, if it is
 * there. 1: from a probe on a return instruction (elf/return_sites.py): the function returns if the
 * stack is as at the entry.
 */
static __always_inline int rs_return(struct pt_regs *ctx, u32 scope, int at_return)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!rs_role(id >> 32))
		return 0;
	struct rs_call key = {.tid = (u32)id, .scope = scope};
	struct rs_call_entry *entry = rs_calls.lookup(&key);
	if (!entry || entry->tgid != id >> 32) { /* entered before the probes, or rejected there */
		rs_count(RS_C_CALL_UNMATCHED);
		return 0;
	}
	if (at_return ? PT_REGS_SP(ctx) != entry->sp : PT_REGS_SP(ctx) < entry->sp + RS_POPPED) /* the return of a nested call */
		return 0;
	struct rs_event event = {
		.ts_ns = entry->ts_ns,
		.dur_ns = bpf_ktime_get_ns() - entry->ts_ns,
		.stack = entry->object,
		.arg = entry->arg,
		.tid = (u32)id,
		.tgid = id >> 32,
		.type = RS_EV_CALL,
		.what = entry->row,
		.aux = entry->aux,
	};
	u64 shortest_ns = entry->shortest_ns;
	struct rs_call_place place = {.sp = entry->sp, .tid = (u32)id};
	u64 *site = rs_call_sites.lookup(&place);
	if (site) {
		event.ready_ns = *site;
		rs_call_sites.delete(&place);
	}
	rs_calls.delete(&key);
	rs_call_over(event.tgid);
	if (shortest_ns) {
		struct rs_call_sum *sum = rs_call_sum_of(event.tgid, event.what, event.aux);
		if (sum) {
			__sync_fetch_and_add(&sum->count, 1);
			__sync_fetch_and_add(&sum->bytes, event.arg);
			__sync_fetch_and_add(&sum->ns, event.dur_ns);
		}
		if (event.dur_ns < shortest_ns)
			return 0;
	}
	rs_emit(&event);
	return 0;
}

/*
 * Count a launch. Only the count is added to: clang turns an addition of 0 into an atomic OR, which
 * kernels before 5.12 refuse.
 */
static __always_inline int rs_launch(struct pt_regs *ctx, u32 row)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!rs_call_watched(id))
		return 0;
	struct rs_call_sum *sum = rs_call_sum_of(id >> 32, row, 0);
	if (sum)
		__sync_fetch_and_add(&sum->count, 1);
	return 0;
}

/* One launch in so many is located, a walk of 5-15 us: of 50,000 a second, observed for 0.1 s of 6 s, 0.05 % of a core. */
#define RS_LAUNCHES_EACH 16

/*
 * Locate a launch: what is launched, where the call returns to, and the Python stack. Which ones is
 * random, as by turns it would always be the same kernel of a loop of as many. A program of its own
 * beside rs_enter_N, whose trap it shares, for the reason given at rs_call_site. `argument`: the
 * position of the kernel, 0 of a graph, which has no name.
 */
static __always_inline int rs_launch_site(struct pt_regs *ctx, u32 argument)
{
	if (bpf_get_prandom_u32() % RS_LAUNCHES_EACH)
		return 0;
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id, tgid = id >> 32;
	if (!rs_role(tgid))
		return 0;
	u64 first = PT_REGS_PARM1(ctx), second = PT_REGS_PARM2(ctx);
	asm volatile("" : "+r"(first), "+r"(second)); /* else clang chooses between addresses in ctx, which the verifier refuses */
	struct rs_event event = {
	    .ts_ns = bpf_ktime_get_ns(),
	    .stack = argument == 2 ? second : argument == 1 ? first : 0,
	    .arg = rs_caller(ctx),
	    .tid = tid,
	    .tgid = tgid,
	    .type = RS_EV_LAUNCH,
	    .what = argument,
	};
#ifdef RS_HAVE_UNWINDER
	if (rs_is_python(tid))
		event.ready_ns = rs_python_stack_preemptible(tid, tgid);
#endif
	rs_emit(&event);
	return 0;
}
