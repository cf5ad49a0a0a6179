/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * files: time of watched processes' threads in read, write and sync calls, with bytes and device.
 *
 * probe.py lists the system calls: each has an enter and an exit program, made of rs_file_in and
 * rs_file_out. The descriptor is followed to its file's type and device at the end of the call:
 * task -> files -> fdt -> fd[] -> inode -> super block, by offsets from the running kernel's BTF.
 * Short calls are counted with their bytes per process and operation.
 *
 * Descriptors that turn out to be sockets are ignored for a second: a collective writes to its
 * peers thousands of times a second, and a probe there would slow down what all ranks wait for.
 *
 * Cost, both ends of a call, with 8 ranks on 2 cores: 0.32 us for a call on a known socket (0.54 us
 * with hash look-ups, in the same minutes), 1.5 us for a file's, 0.3 us for every other caller of
 * these system calls.
 */
#include "common.bpf.h"

#ifndef RS_MIN_FILE_NS
#define RS_MIN_FILE_NS 100000 /* shorter calls come from the page cache and are only summed */
#endif

#define RS_FORGET_BITS 30 /* 2^30 ns: after that a descriptor's number may mean another file: look up again */
#define RS_TYPE_SOCKET 12

/*
 * Descriptors known to be sockets, by hash: process, descriptor and time in one word, so that it is
 * read atomically. 16 ranks x 1,000 peers; of two with one hash the later one wins.
 */
#define RS_SOCKETS 16384 /* power of two */
BPF_ARRAY(rs_sockets, u64, RS_SOCKETS);

/*
 * Number of calls in progress by the last bits of the thread id: rejects most foreign calls at
 * their end.
 */
#define RS_PENDING 4096 /* power of two */
BPF_ARRAY(rs_file_pending, u64, RS_PENDING);

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
/*
 * All calls, long and short. Processes of one window, including ended ones (4,096) x 10 operations:
 * 4 MB.
 */
BPF_HASH(rs_file_sums, struct rs_file_key, struct rs_file_sum, 40960);

/*
 * Process and descriptor in one word; 0 if they do not fit: no process id is higher, and few
 * descriptors.
 */
static __always_inline u64 rs_socket_name(u32 tgid, u32 fd)
{
	return fd >> 20 || tgid >> 22 ? 0 : (u64)tgid << 20 | fd;
}

static __always_inline u64 rs_when(u64 now)
{
	return now >> RS_FORGET_BITS & 0x3fffff;
}

static __always_inline u64 *rs_socket_place(u32 tgid, u32 fd)
{
	int place = (tgid * 0x9e3779b1 + fd) & (RS_SOCKETS - 1);
	return rs_sockets.lookup(&place);
}

static __always_inline u64 *rs_pending(u32 tid)
{
	int place = tid & (RS_PENDING - 1);
	return rs_file_pending.lookup(&place);
}

static __always_inline int rs_file_enter(u32 op, u32 fd)
{
	u64 id = bpf_get_current_pid_tgid();
	u64 *known = rs_socket_place(id >> 32, fd), socket = known ? *known : 0;
	if (socket && socket >> 22 == rs_socket_name(id >> 32, fd) && (socket & 0x3fffff) == rs_when(bpf_ktime_get_ns()))
		return 0;
	if (!rs_role(id >> 32))
		return 0;
	u32 tid = (u32)id;
	struct rs_file_entry entry = {.ts_ns = bpf_ktime_get_ns(), .fd = fd, .op = op};
	u64 *pending = rs_pending(tid);
	if (!pending || rs_file_entries.update(&tid, &entry)) {
		rs_count(RS_C_FILE_MAP_FULL);
		return 0;
	}
	__sync_fetch_and_add(pending, 1);
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
	u64 *pending = rs_pending(tid);
	if (!pending || !*pending) /* of an unwatched process, of a socket, or begun before the probes */
		return 0;
	struct rs_file_entry *entry = rs_file_entries.lookup(&tid);
	if (!entry) /* another thread with the same last bits */
		return 0;
	u64 now = bpf_ktime_get_ns(), gone = now - entry->ts_ns;
	u32 type = 0, device = rs_file_device(entry->fd, &type);
	if (type == RS_TYPE_SOCKET) {
		u64 *known = rs_socket_place(id >> 32, entry->fd), name = rs_socket_name(id >> 32, entry->fd);
		if (known && name)
			*known = name << 22 | rs_when(now);
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
	__sync_fetch_and_add(pending, -1);
	return 0;
}
