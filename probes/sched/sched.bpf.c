/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * sched: what every watched thread does while it is not running, and which processes ran meanwhile.
 *
 * sched_switch closes the slice of the thread that leaves (run time, why it left: its state and,
 * from the registers at the kernel's entry, the system call it is in) and completes the absence of
 * the thread that arrives (blocked, then ready). For a thread that waited in the run queue, the
 * last RS_SLICES slices of this CPU give the processes that ran meanwhile. sched_waking ends the
 * blocked part and gives the thread that ended it: it runs on the waker's CPU, whichever CPU the
 * woken thread is on. For threads with Python state the stack is taken when they leave (unwinder);
 * for others, absences with run-queue time are reported. So are stretches in which all threads of a
 * process slept.
 *
 * The kernel runs no program for an edge that comes while another one runs on that CPU, or while a
 * reader of a map was preempted there. A thread that leaves without a seen arrival has its absence
 * reported then.
 *
 * Cost: 0.63 us a switch and 0.35 us a wake-up, with 8 ranks on 2 cores that are busy otherwise too
 * (alternating with a full look-up each time: 0.80 us), and 6 and 15 % more for detecting sleeping
 * processes. The program runs on every context switch of the host, and a hash look-up is most of
 * its cost (0.1 us each where the job has evicted the cache). So a thread's class is cached until
 * user space signals a change (rs_generation): for a watched thread with its sums, which are looked
 * up anyway, and for the last foreign threads on each CPU, for which nothing is looked up.
 */
#include "common.bpf.h"
#include "awake.bpf.h"
#include "registers.bpf.h"

#ifndef RS_MIN_OFFCPU_NS
#define RS_MIN_OFFCPU_NS 50000 /* shorter absences are summed per thread, not reported one by one */
#endif
#ifndef RS_MIN_TAKEN_NS
#define RS_MIN_TAKEN_NS 200000 /* shorter waits in the run queue are ordinary scheduling: the other processes are not recorded */
#endif
#define RS_SLICES 8 /* power of two; remembered slices of one CPU */
#define RS_STRANGERS 8 /* power of two; foreign threads that one CPU remembers */
#ifndef RS_STRANGE_NS
#define RS_STRANGE_NS 1000000000ULL /* after that a thread's id may be reused: look up again */
#endif
#define RS_TASK_STOPPED 0x4
#define RS_TASK_DEAD 0x30 /* EXIT_DEAD, EXIT_ZOMBIE; 0x80, elsewhere TASK_DEAD, is TASK_IDLE in sched_switch's state */

struct rs_thread {
	u64 in_ns;   /* start of running; 0 while it does not run */
	u64 out_ns;  /* start of the absence; 0 while it runs */
	u64 wake_ns; /* when it became ready again; 0 while blocked */
	u64 stack;
	s64 arg;
	u32 tgid;
	u32 state;
	u16 syscall;
	u16 python;
	u32 generation; /* when `python` was looked up */
	u32 waker;   /* the thread on whose CPU it was woken, 0 while blocked */
	u32 counted; /* in rs_awake: it runs, is runnable, or waits for a device */
	u64 run_ns, ready_ns, blocked_ns, stopped_ns; /* totals since the observer started */
	u64 switches;
};
BPF_HASH(rs_threads, u32, struct rs_thread, RS_MAX_THREADS);

/*
 * Number of threads in that map, and its limits, as it is larger on a host with more threads: how
 * many any process may add, and how many each may add beyond that: half of all, and a share of the
 * other half (kernel_probes.py; 0: as below). So one process's thousands do not exclude the first
 * threads of others.
 */
#define RS_THREADS_KNOWN 0
#define RS_THREADS_FREELY 1
#define RS_THREADS_EACH 2
BPF_ARRAY(rs_thread_room, s64, 3);

/*
 * Increased whenever user space has changed the watched processes or Python threads
 * (sched/probe.py, look_again).
 */
BPF_ARRAY(rs_generation, u32, 1);

/*
 * Sums of the ended threads of each process. As many processes as one window watches, including
 * ended ones.
 */
struct rs_ended_sum {
	u64 run_ns, ready_ns;
};
BPF_HASH(rs_ended, u32, struct rs_ended_sum, 4096);

struct rs_slice {
	u64 start_ns, end_ns;
	u32 tgid, pad;
	char comm[16];
};
struct rs_cpu {
	u64 start_ns;
	u64 strangers_ns; /* since when foreign threads are remembered */
	u32 head, generation;
	u32 strangers[RS_STRANGERS]; /* tids, by hash; only a thread leaving the CPU comes with its process */
	struct rs_slice slices[RS_SLICES];
};
BPF_PERCPU_ARRAY(rs_cpus, struct rs_cpu, 1);

/*
 * Location of an interpreter's GIL: its mutex and condition variables are futexes inside these
 * bytes, and `holder` points to the thread state that took it last. Written by user space; empty
 * without an unwinder.
 */
struct rs_gil {
	u64 address, bytes, holder;
};
BPF_HASH(rs_gils, u32, struct rs_gil, RS_MAX_PROCESSES);
#define RS_GIL 0xfffe /* in place of the system call: a wait for the GIL; the argument is then the thread state that has it */

/*
 * (process with a waiting thread, process that ran) -> how long. 8 x 400 processes a second (an
 * exec storm) for a window of 20 s: 6 MB. Beyond that the pairs that ran least recently are
 * evicted, usually ended processes; probe.py computes how many: RS_C_TAKER_NEW counts all pairs
 * ever added.
 */
struct rs_taker {
	u32 tgid, taker;
};
struct rs_taken {
	u64 ns;
	u64 since_ns; /* distinguishes an entry that was evicted and added again */
	char comm[16];
};
BPF_TABLE("lru_hash", struct rs_taker, struct rs_taken, rs_takers, 65536);

/* Host tids with Python state; the unwinder's map. Empty without an unwinder. */
#ifndef RS_HAVE_UNWINDER
static __always_inline int rs_is_python(u32 tid) { return 0; }
static __always_inline u64 rs_python_stack(u32 tid, u32 tgid) { return 0; }
#endif

/*
 * Get the system call of the current thread, and its first argument, from the registers saved at
 * kernel entry.
 */
static __always_inline void rs_where(struct rs_thread *thread)
{
	void *regs = rs_saved_registers();
	u64 first = 0;
	bpf_probe_read_kernel(&first, sizeof(first), regs + RS_SAVED_ARGUMENT);
	thread->syscall = rs_system_call(regs);
	thread->arg = thread->syscall == RS_NO_CALL ? 0 : (s64)first;
}

/* A futex inside the GIL is a wait for the GIL: record that, and which thread has it now. */
static __always_inline void rs_which_lock(struct rs_thread *thread, u32 tgid)
{
	struct rs_gil *gil = rs_gils.lookup(&tgid);
	if (!gil || (u64)thread->arg - gil->address >= gil->bytes)
		return;
	u64 holder = 0;
	bpf_probe_read_user(&holder, sizeof(holder), (void *)(gil->address + gil->holder));
	thread->syscall = RS_GIL;
	thread->arg = (s64)holder;
}

/* Account the absence that ends now: its sums, and an event if it is long enough. */
static __always_inline u64 rs_absent(u32 tid, u64 now, struct rs_thread *thread)
{
	u64 out = thread->out_ns, wake = thread->wake_ns;
	if (now < out) {
		rs_count(RS_C_NEGATIVE_TIME);
		return 0;
	}
	/* If the wake-up was missed, all of it counts as blocked. */
	if (!wake)
		rs_count(RS_C_WAKE_UNSEEN);
	u64 ready = wake && now > wake ? now - (wake > out ? wake : out) : 0;
	u64 gone = now - out;
	thread->ready_ns += ready;
	thread->blocked_ns += gone - ready;
	if (thread->state & RS_TASK_STOPPED)
		thread->stopped_ns += gone - ready;
	/*
	 * For threads without Python only waits for a CPU matter: they may carry a collective that
	 * others wait for.
	 */
	if (!thread->python && ready < RS_MIN_TAKEN_NS)
		return ready;
	if (gone < RS_MIN_OFFCPU_NS) {
		rs_count(RS_C_SHORT);
		return ready;
	}
	struct rs_event event = {
		.ts_ns = out,
		.dur_ns = gone,
		.ready_ns = ready,
		.stack = thread->stack,
		.arg = thread->arg,
		.tid = tid,
		.tgid = thread->tgid,
		.type = RS_EV_OFFCPU,
		.what = thread->syscall,
		.aux = thread->state | thread->waker << 8,
	};
	rs_emit(&event);
	return ready;
}

/*
 * Estimate when the current thread arrived if that was not seen: after it had left and was woken,
 * after the last switch seen here, and, if BTF gives the location of its times, at the scheduler's
 * own time (stolen and interrupt time is missing there).
 */
static __always_inline void rs_came_unseen(u32 tid, u64 now, struct rs_thread *thread, struct rs_cpu *cpu)
{
	u64 came = thread->out_ns;
	if (thread->wake_ns > came)
		came = thread->wake_ns;
	if (cpu->start_ns > came)
		came = cpu->start_ns;
	if (RS_TASK_RAN) {
		u64 ran = 0, before = 0;
		void *task = (void *)bpf_get_current_task();
		bpf_probe_read_kernel(&ran, sizeof(ran), task + RS_TASK_RAN);
		bpf_probe_read_kernel(&before, sizeof(before), task + RS_TASK_RAN_BEFORE);
		if (now - (ran - before) > came && ran - before < now)
			came = now - (ran - before);
	}
	rs_count(RS_C_ARRIVAL_UNSEEN);
	rs_absent(tid, came, thread);
	thread->in_ns = came;
}

/*
 * Increase the number of threads in rs_threads; return whether the limit allows it. Simultaneous
 * CPUs may each exceed it by one.
 */
static __always_inline int rs_thread_begins(u32 tgid)
{
	int at_known = RS_THREADS_KNOWN, at_freely = RS_THREADS_FREELY, at_each = RS_THREADS_EACH;
	struct rs_awake zero = {};
	struct rs_awake *process = rs_awake.lookup_or_try_init(&tgid, &zero);
	s64 *known = rs_thread_room.lookup(&at_known), *freely = rs_thread_room.lookup(&at_freely);
	s64 *each = rs_thread_room.lookup(&at_each);
	if (!process || !known || !freely || !each) {
		rs_count(RS_C_THREAD_MAP_FULL);
		return 0;
	}
	if (*known >= (*freely ? *freely : RS_MAX_THREADS / 2) &&
	    process->known >= (*each ? *each : RS_MAX_THREADS / 2 / RS_MAX_PROCESSES)) {
		rs_count(RS_C_THREAD_SHARE_FULL);
		return 0;
	}
	__sync_fetch_and_add(known, 1);
	__sync_fetch_and_add(&process->known, 1);
	return 1;
}

/* Decrease the number of threads. */
static __always_inline void rs_thread_over(u32 tgid)
{
	int at_known = RS_THREADS_KNOWN;
	struct rs_awake *process = rs_awake.lookup(&tgid);
	s64 *known = rs_thread_room.lookup(&at_known);
	if (known)
		__sync_fetch_and_add(known, -1);
	if (process)
		__sync_fetch_and_add(&process->known, -1);
}

static __always_inline void rs_leave(u32 tid, u32 tgid, u32 state, u64 now, struct rs_cpu *cpu)
{
	u64 stack = 0;
	u32 python, generation = cpu->generation;
	struct rs_thread *thread = rs_threads.lookup(&tid);
	if (state & RS_TASK_DEAD) { /* its last switch: rs_sched_exit has removed it; but it may have been preempted since */
		if (thread) {
			rs_sleeps(thread->tgid, now, &thread->counted);
			rs_thread_over(thread->tgid);
			rs_threads.delete(&tid);
		}
		return;
	}
	if (thread && thread->generation == generation && thread->tgid == tgid) {
		python = thread->python;
	} else {
		if (!rs_role(tgid)) {
			cpu->strangers[tid & (RS_STRANGERS - 1)] = tid;
			return;
		}
		python = rs_is_python(tid);
	}
	/*
	 * Both paths join in the same state, so that the verifier checks the walk once (0.41 s for
	 * each path, Linux 6.18).
	 */
	asm volatile("" : "+r"(python));
	if (python) {
		stack = rs_python_stack(tid, tgid);
		thread = rs_threads.lookup(&tid);
	}
	if (!thread) {
		if (!rs_thread_begins(tgid))
			return;
		struct rs_thread fresh = {};
		fresh.tgid = tgid;
		rs_threads.update(&tid, &fresh);
		thread = rs_threads.lookup(&tid);
		if (!thread) {
			rs_thread_over(tgid);
			rs_count(RS_C_THREAD_MAP_FULL);
			return;
		}
	}
	if (!thread->in_ns && thread->out_ns)
		rs_came_unseen(tid, now, thread, cpu);
	rs_awakes(thread->tgid, tid, now, &thread->counted, 0); /* it ran, whatever edges were seen */
	if (state == RS_TASK_ASLEEP)
		rs_sleeps(thread->tgid, now, &thread->counted);
	if (thread->in_ns && now > thread->in_ns)
		thread->run_ns += now - thread->in_ns;
	thread->in_ns = 0;
	thread->out_ns = now;
	thread->state = state;
	thread->switches += 1;
	thread->wake_ns = state ? 0 : now; /* still runnable: ready from now on */
	thread->waker = 0;
	thread->python = python;
	thread->generation = generation;
	thread->stack = stack;
	if (python) {
		rs_where(thread);
		if (thread->syscall == RS_FUTEX)
			rs_which_lock(thread, tgid);
	}
}

/* Add up the processes that ran since then, except the idle task and the thread's own process. */
static __always_inline void rs_take(u32 tgid, u64 since, struct rs_cpu *cpu)
{
	u32 head = cpu->head;
#pragma unroll
	for (u32 back = 1; back <= RS_SLICES; back++) {
		struct rs_slice *slice = &cpu->slices[(head - back) & (RS_SLICES - 1)];
		if (slice->end_ns <= since)
			break;
		if (!slice->tgid || slice->tgid == tgid)
			continue;
		u64 from = slice->start_ns > since ? slice->start_ns : since;
		struct rs_taker key = {.tgid = tgid, .taker = slice->tgid};
		struct rs_taken *taken = rs_takers.lookup(&key);
		if (taken) {
			__sync_fetch_and_add(&taken->ns, slice->end_ns - from);
		} else {
			struct rs_taken fresh = {.ns = slice->end_ns - from, .since_ns = slice->end_ns};
			__builtin_memcpy(fresh.comm, slice->comm, sizeof(fresh.comm));
			rs_count(rs_takers.update(&key, &fresh) ? RS_C_TAKER_MAP_FULL : RS_C_TAKER_NEW);
		}
	}
}

static __always_inline void rs_arrive(u32 tid, u64 now, struct rs_cpu *cpu)
{
	struct rs_thread *thread = rs_threads.lookup(&tid);
	if (!thread)
		return;
	if (thread->in_ns) /* nor to leave: what it did meanwhile is unknown */
		rs_count(RS_C_LEAVING_UNSEEN);
	thread->in_ns = now;
	rs_awakes(thread->tgid, tid, now, &thread->counted, 0);
	if (!thread->out_ns)
		return;
	u64 ready = rs_absent(tid, now, thread);
	thread->out_ns = 0;
	if (ready > RS_MIN_TAKEN_NS)
		rs_take(thread->tgid, now - ready, cpu);
}

int rs_sched_switch(struct rs_at__sched__sched_switch *args)
{
	u64 now = bpf_ktime_get_ns();
	u32 prev = args->prev_pid, next = args->next_pid;
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	int zero = 0;
	struct rs_cpu *cpu = rs_cpus.lookup(&zero);
	u32 *generation = rs_generation.lookup(&zero);

	if (!cpu || !generation)
		return 0;
	if (cpu->generation != *generation || now - cpu->strangers_ns > RS_STRANGE_NS) {
		__builtin_memset(cpu->strangers, 0, sizeof(cpu->strangers));
		cpu->strangers_ns = now;
		cpu->generation = *generation;
	}
	struct rs_slice *slice = &cpu->slices[cpu->head & (RS_SLICES - 1)];
	slice->start_ns = cpu->start_ns;
	slice->end_ns = now;
	slice->tgid = prev ? tgid : 0;
	__builtin_memcpy(slice->comm, args->prev_comm, sizeof(slice->comm));
	cpu->head += 1;
	if (prev && cpu->strangers[prev & (RS_STRANGERS - 1)] != prev)
		rs_leave(prev, tgid, (u32)args->prev_state & 0xff, now, cpu);
	cpu->start_ns = now;
	if (next && cpu->strangers[next & (RS_STRANGERS - 1)] != next)
		rs_arrive(next, now, cpu);
	return 0;
}

static __always_inline int rs_woken(u32 tid)
{
	struct rs_thread *thread = rs_threads.lookup(&tid);
	if (thread && thread->out_ns && !thread->wake_ns) {
		thread->wake_ns = bpf_ktime_get_ns();
		thread->waker = (u32)bpf_get_current_pid_tgid();
		rs_awakes(thread->tgid, tid, thread->wake_ns, &thread->counted, bpf_get_current_pid_tgid() >> 32 != thread->tgid);
	}
	return 0;
}

int rs_sched_waking(struct rs_at__sched__sched_waking *args)
{
	return rs_woken(args->pid);
}

/* Add the times of an ended thread to its process. */
static __always_inline void rs_keep_sums(struct rs_thread *thread, u64 now)
{
	u32 tgid = thread->tgid;
	struct rs_ended_sum zero = {};
	struct rs_ended_sum *sum = rs_ended.lookup_or_try_init(&tgid, &zero);
	if (!sum) {
		rs_count(RS_C_THREAD_MAP_FULL);
		return;
	}
	u64 last = thread->in_ns && now > thread->in_ns ? now - thread->in_ns : 0;
	__sync_fetch_and_add(&sum->run_ns, thread->run_ns + last);
	__sync_fetch_and_add(&sum->ready_ns, thread->ready_ns);
}

/*
 * Children of watched processes that ended and were not watched themselves, with their parent, and how
 * long their ended threads ran: loader workers that lived too shortly for user space. A window's worth
 * of 400 a second: 700 kB.
 */
struct rs_child {
	u32 parent, since_s; /* the second of the first end: a number may be used again */
	u64 ran_ns;
};
BPF_TABLE("lru_hash", u32, struct rs_child, rs_children, 8192);

static __always_inline void rs_child_over(u32 tgid, u64 now)
{
	if (!RS_TASK_PARENT || !RS_TASK_RAN) /* without type information */
		return;
	void *task = (void *)bpf_get_current_task(), *parent = 0;
	struct rs_child child = {.since_s = now / 1000000000};
	bpf_probe_read_kernel(&parent, sizeof(parent), task + RS_TASK_PARENT);
	bpf_probe_read_kernel(&child.parent, sizeof(child.parent), parent + RS_TASK_TGID);
	if (!rs_role(child.parent))
		return;
	bpf_probe_read_kernel(&child.ran_ns, sizeof(child.ran_ns), task + RS_TASK_RAN);
	struct rs_child *known = rs_children.lookup(&tgid);
	if (known && known->parent == child.parent && child.since_s - known->since_s < 60)
		__sync_fetch_and_add(&known->ran_ns, child.ran_ns);
	else
		rs_children.update(&tgid, &child);
}

int rs_sched_exit(struct rs_at__sched__sched_process_exit *args)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tid = args->pid;
	struct rs_thread *thread = rs_threads.lookup(&tid);
	if (thread) {
		rs_keep_sums(thread, bpf_ktime_get_ns());
		rs_sleeps(thread->tgid, bpf_ktime_get_ns(), &thread->counted);
		rs_thread_over(thread->tgid);
	}
	rs_threads.delete(&tid);
	if ((u32)id == id >> 32 && rs_role(id >> 32)) {
		s32 status = -1;
		if (RS_TASK_EXIT_CODE)
			bpf_probe_read_kernel(&status, sizeof(status), (void *)bpf_get_current_task() + RS_TASK_EXIT_CODE);
		struct rs_event event = {
			.ts_ns = bpf_ktime_get_ns(), .arg = status, .tid = tid, .tgid = id >> 32, .type = RS_EV_EXIT,
		};
		rs_emit(&event);
		u32 tgid = id >> 32; /* its id may be reused before user space handles the event */
		rs_targets.delete(&tgid);
		rs_awake.delete(&tgid);
	} else if (!rs_role(id >> 32)) {
		rs_child_over(id >> 32, bpf_ktime_get_ns());
	}
	return 0;
}
