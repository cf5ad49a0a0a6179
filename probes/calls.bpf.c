/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * calls: enter and leave of chosen library functions, one event per call.
 *
 * Which functions: probes/call_table.py. probes/calls.py generates the two small programs of each row (rs_enter_N,
 * rs_leave_N) around the two functions here. Probes sit on the library's inode, so a process that no one watches pays the
 * trap too, and is let go after one look-up.
 *
 * Cost: a uprobe is 1-2 us on bare metal and about 10 us in a nested virtual machine, twice per call; so calls.py watches
 * rs_call_hits and detaches a row that exceeds its budget.
 */
#include "common.bpf.h"

struct rs_call {
	u32 tid, row;
};
struct rs_call_entry {
	u64 ts_ns;
	s64 arg;
};
/* Calls in progress. 16 ranks x (16 threads x 4 nested) with room. */
BPF_HASH(rs_calls, struct rs_call, struct rs_call_entry, 8192);
BPF_PERCPU_ARRAY(rs_call_hits, u64, 256);

static __always_inline int rs_enter(struct pt_regs *ctx, u32 row, s64 arg)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!rs_role(id >> 32))
		return 0;
	int slot = row;
	u64 *hits = rs_call_hits.lookup(&slot);
	if (hits)
		*hits += 1;
	struct rs_call key = {.tid = (u32)id, .row = row};
	struct rs_call_entry entry = {.ts_ns = bpf_ktime_get_ns(), .arg = arg};
	if (rs_calls.update(&key, &entry))
		rs_count(RS_C_CALL_MAP_FULL);
	return 0;
}

static __always_inline int rs_return(struct pt_regs *ctx, u32 row)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!rs_role(id >> 32))
		return 0;
	struct rs_call key = {.tid = (u32)id, .row = row};
	struct rs_call_entry *entry = rs_calls.lookup(&key);
	if (!entry) { /* entered before we came */
		rs_count(RS_C_CALL_UNMATCHED);
		return 0;
	}
	struct rs_event event = {
		.ts_ns = entry->ts_ns,
		.dur_ns = bpf_ktime_get_ns() - entry->ts_ns,
		.arg = entry->arg,
		.tid = (u32)id,
		.tgid = id >> 32,
		.type = RS_EV_CALL,
		.what = row,
	};
	rs_calls.delete(&key);
	rs_emit(&event);
	return 0;
}
