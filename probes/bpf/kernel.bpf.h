/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * kernel: all that the programs need of the kernel's headers, and what bcc writes in place of `map.lookup(&key)`.
 *
 * bcc puts 60,000 lines of kernel headers before each text and reads them three times, which takes a second of CPU and needs
 * headers of some kernel on the host. Nothing of that is used here: types, numbers of helpers and flags, and registers are ABI
 * (include/uapi/linux/bpf.h, arch/.../include/uapi/asm/ptrace.h). compile_with_bcc.py keeps bcc's own headers out; the names that its
 * rewriter expects are the same in bcc 0.8 to 0.37.
 */
#ifndef RS_KERNEL_BPF_H
#define RS_KERNEL_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef unsigned long uintptr_t;
typedef unsigned char __u8; /* in what bcc makes of tracepoint formats */
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int pid_t;
typedef unsigned long size_t;
typedef _Bool bool;

#define __always_inline inline __attribute__((always_inline))

/*
 * --- registers, as user space sees them; and what of a system call the kernel saves behind them at its entry
 *
 * RS_AARCH64 says on which machine the programs will run, and loader.py gives it: what a compiler defines by itself is the machine that
 * it runs on (bcc), or none (clang for BPF).
 */

#ifdef RS_AARCH64
struct pt_regs {
	u64 regs[31], sp, pc, pstate;
};
#define PT_REGS_PARM1(ctx) ((ctx)->regs[0])
#define PT_REGS_PARM2(ctx) ((ctx)->regs[1])
#define PT_REGS_PARM3(ctx) ((ctx)->regs[2])
#define PT_REGS_PARM4(ctx) ((ctx)->regs[3])
#define PT_REGS_PARM5(ctx) ((ctx)->regs[4])
#define PT_REGS_PARM6(ctx) ((ctx)->regs[5])
#define PT_REGS_SP(ctx) ((ctx)->sp)
#define PT_REGS_IP(ctx) ((ctx)->pc)
#define RS_SAVED_ARGUMENT 272 /* orig_x0, then syscallno: arch/arm64/include/asm/ptrace.h, the same since Linux 4.14 */
#define RS_SAVED_CALL 280
#define RS_FUTEX 98
#else
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define PT_REGS_PARM1(ctx) ((ctx)->di)
#define PT_REGS_PARM2(ctx) ((ctx)->si)
#define PT_REGS_PARM3(ctx) ((ctx)->dx)
#define PT_REGS_PARM4(ctx) ((ctx)->cx)
#define PT_REGS_PARM5(ctx) ((ctx)->r8)
#define PT_REGS_PARM6(ctx) ((ctx)->r9)
#define PT_REGS_SP(ctx) ((ctx)->sp)
#define PT_REGS_IP(ctx) ((ctx)->ip)
#define RS_SAVED_ARGUMENT 112 /* di and orig_ax, of which the lower half is enough */
#define RS_SAVED_CALL 120
#define RS_FUTEX 202
#endif

/* What a program on a clock is given: the registers of what it interrupted. */
struct bpf_perf_event_data {
	struct pt_regs regs;
	u64 sample_period, addr;
};

/* --- helpers, by number */

#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static int (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static int (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static u64 (*bpf_get_current_task)(void) = (void *)35;
static int (*bpf_ringbuf_output)(void *ring, void *data, u64 bytes, u64 flags) = (void *)130;
/* Under names of ours: at the kernel's own bcc looks through all symbols of the kernel, and takes another helper where it finds none. */
static int (*rs_read_user)(void *to, u32 bytes, const void *from) = (void *)112;
static int (*rs_read_kernel)(void *to, u32 bytes, const void *from) = (void *)113;
#define bpf_probe_read_user rs_read_user
#define bpf_probe_read_kernel rs_read_kernel

/* --- maps, as bcc's rewriter knows them: changes here have to follow its MapVisitor and BTypeVisitor */

#define BCC_SEC(name) __attribute__((section(name), used))

u64 bpf_pseudo_fd(u64, u64) asm("llvm.bpf.pseudo");
static __always_inline void *bpf_map_lookup_elem_(uintptr_t map, void *key)
{
	return bpf_map_lookup_elem((void *)map, key);
}
static __always_inline int bpf_map_update_elem_(uintptr_t map, void *key, void *value, u64 flags)
{
	return bpf_map_update_elem((void *)map, key, value, flags);
}

#define BPF_TABLE(kind, key_type, leaf_type, name, entries)                                                                    \
	struct name##_table_t {                                                                                                \
		key_type key;                                                                                                  \
		leaf_type leaf;                                                                                                \
		leaf_type *(*lookup)(key_type *);                                                                              \
		leaf_type *(*lookup_or_try_init)(key_type *, leaf_type *);                                                     \
		int (*update)(key_type *, leaf_type *);                                                                        \
		int (*delete)(key_type *);                                                                                     \
		u32 max_entries;                                                                                               \
		int flags;                                                                                                     \
	};                                                                                                                     \
	__attribute__((section("maps/" kind))) struct name##_table_t name = {.flags = 0, .max_entries = (entries)}
#define BPF_HASH(name, key_type, leaf_type, entries) BPF_TABLE("hash", key_type, leaf_type, name, entries)
#define BPF_ARRAY(name, leaf_type, entries) BPF_TABLE("array", int, leaf_type, name, entries)
#define BPF_PERCPU_ARRAY(name, leaf_type, entries) BPF_TABLE("percpu_array", int, leaf_type, name, entries)
#define BPF_RINGBUF_OUTPUT(name, pages)                                                                                        \
	struct name##_table_t {                                                                                                \
		int key;                                                                                                       \
		u32 leaf;                                                                                                      \
		int (*ringbuf_output)(void *, u64, u64);                                                                       \
		u32 max_entries;                                                                                               \
	};                                                                                                                     \
	__attribute__((section("maps/ringbuf"))) struct name##_table_t name = {.max_entries = ((pages) * 4096)}

#endif
