/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * files: how long the threads of watched processes stay in read, write and sync calls, how many bytes, on which device.
 *
 * probe.py generates one enter and one exit program per system call around rs_file_enter and rs_file_exit. The
 * descriptor is followed to its file's type and device at the end of the call: task -> files -> fdt -> fd[] -> inode ->
 * super block, by offsets from the running kernel's BTF.
 * Short calls are counted with their bytes per process and operation.
 *
 * Descriptors found to be sockets are let go at once for RS_FORGET_NS: a collective writes to its peers thousands of times a
 * second, and each probe there would lie on the path that all ranks wait for.
 *
 * Cost: 0.1-0.2 us per call of a watched process, one look-up for every other caller of these system calls.
 */
#include "common.bpf.h"

#ifndef RS_MIN_FILE_NS
#define RS_MIN_FILE_NS 100000 /* below: served from the page cache, summed up instead */
#endif

#ifndef RS_FORGET_NS
#define RS_FORGET_NS 1000000000ULL /* a descriptor's number may mean another file by then: look again */
#endif
#define RS_TYPE_SOCKET 12

/* (process, descriptor) -> when it was found to be a socket. 16 ranks x 1,000 peers; the least recently used ones go. */
struct rs_descriptor {
	u32 tgid, fd;
};
BPF_TABLE("lru_hash", struct rs_descriptor, u64, rs_sockets, 16384);

struct rs_file_entry {
	u64 ts_ns;
	u32 fd, op;
};
/* One call in progress per thread. */
BPF_HASH(rs_file_entries, u32, struct rs_file_entry, RS_MAX_THREADS);

struct rs_file_key {
	u32 tgid, op;
};
struct rs_file_sum {
	u64 count, ns, bytes;
};
/* All calls, long and short. Processes x operations. */
BPF_HASH(rs_file_sums, struct rs_file_key, struct rs_file_sum, 8192);

static __always_inline int rs_file_enter(u32 op, u32 fd)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!rs_role(id >> 32))
		return 0;
	u32 tid = (u32)id;
	struct rs_file_entry entry = {.ts_ns = bpf_ktime_get_ns(), .fd = fd, .op = op};
	struct rs_descriptor descriptor = {.tgid = id >> 32, .fd = fd};
	u64 *known = rs_sockets.lookup(&descriptor);
	if (known && entry.ts_ns - *known < RS_FORGET_NS)
		return 0;
	if (rs_file_entries.update(&tid, &entry))
		rs_count(RS_C_FILE_MAP_FULL);
	return 0;
}

/* File type (the top four bits of the inode's mode) and device of a descriptor of the current process; 0 when unknown. */
static __always_inline u32 rs_file_device(u32 fd, u32 *type)
{
	void *at = (void *)bpf_get_current_task();
	u16 mode = 0;
	u32 device = 0;
	*type = 0;
	if (bpf_probe_read_kernel(&at, sizeof(at), at + RS_TASK_FILES) || !at)
		return 0;
	if (bpf_probe_read_kernel(&at, sizeof(at), at + RS_FILES_FDT) || !at)
		return 0;
	if (bpf_probe_read_kernel(&at, sizeof(at), at + RS_FDTABLE_FD) || !at)
		return 0;
	if (bpf_probe_read_kernel(&at, sizeof(at), at + 8 * (u64)fd) || !at)
		return 0;
	if (bpf_probe_read_kernel(&at, sizeof(at), at + RS_FILE_INODE) || !at)
		return 0;
	bpf_probe_read_kernel(&mode, sizeof(mode), at + RS_INODE_MODE);
	*type = mode >> 12;
	if (bpf_probe_read_kernel(&at, sizeof(at), at + RS_INODE_SB) || !at)
		return 0;
	bpf_probe_read_kernel(&device, sizeof(device), at + RS_SB_DEV);
	return device;
}

static __always_inline int rs_file_exit(s64 result)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = (u32)id;
	struct rs_file_entry *entry = rs_file_entries.lookup(&tid);
	if (!entry) /* of a stranger, of a socket, or begun before we came */
		return 0;
	u64 now = bpf_ktime_get_ns(), gone = now - entry->ts_ns;
	u32 type = 0, device = rs_file_device(entry->fd, &type);
	if (type == RS_TYPE_SOCKET) {
		struct rs_descriptor descriptor = {.tgid = id >> 32, .fd = entry->fd};
		rs_sockets.update(&descriptor, &now);
	}
	struct rs_file_key key = {.tgid = id >> 32, .op = entry->op};
	struct rs_file_sum zero = {};
	struct rs_file_sum *sum = rs_file_sums.lookup_or_try_init(&key, &zero);
	if (sum) {
		__sync_fetch_and_add(&sum->count, 1);
		__sync_fetch_and_add(&sum->ns, gone);
		__sync_fetch_and_add(&sum->bytes, result > 0 ? result : 0);
	} else {
		rs_count(RS_C_FILE_MAP_FULL);
	}
	if (gone >= RS_MIN_FILE_NS) {
		struct rs_event event = {
			.ts_ns = entry->ts_ns,
			.dur_ns = gone,
			.arg = result,
			.tid = tid,
			.tgid = id >> 32,
			.type = RS_EV_FILE,
		};
		event.aux = device;
		event.what = (u16)(entry->op | type << 8);
		if (!type)
			rs_count(RS_C_FILE_NO_DEVICE);
		rs_emit(&event);
	}
	rs_file_entries.delete(&tid);
	return 0;
}
