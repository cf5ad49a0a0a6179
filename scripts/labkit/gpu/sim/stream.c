/* Streams and events of one process. Each stream has a worker thread that computes when its operations start and end, a few
 * milliseconds ahead, and enters them into the shared state; it sleeps the rest of the time.
 *
 * An operation starts at the later of its being queued and the end of the one before it, in logical time: a worker that
 * the kernel wakes late does not make the GPU late.
 */
#define _GNU_SOURCE
#include "gpusim.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUEUE 1024 /* launches that may be outstanding, as on real CUDA */
#define MAGIC 0x4d414552545353u
#define LOOK_AHEAD_NS 20000000ll
#define WAKE_EARLY_NS 10000000ll
#define COPY_LATENCY_NS 5000
#define CONTEXT_BYTES (500ull << 20)

enum { KERNEL, COPY, CALL, RECORD, WAIT };

static const struct gs_profile profiles[] = {
    [KERNEL] = {.sm = 0.9, .tensor = 0.6, .dram = 0.5, .occupancy = 0.4, .is_kernel = 1},
    [COPY] = {.dram = 0.02},
};

struct cs_event {
    uint64_t recorded, done;
    int64_t time_ns;
};

struct operation {
    int kind, copy_kind;
    double seconds;
    uint64_t bytes, version;
    cs_call call;
    void *data;
    struct cs_event *event;
    int64_t queued_ns, end_ns;
};

struct cs_stream {
    uint64_t magic;
    int device, gpu, owner;
    uint64_t queued, scheduled, retired;
    int64_t end_ns;
    struct operation ring[QUEUE];
    pthread_cond_t work;
    int slot, slot_kind;
    uint64_t slot_serial;
    struct cs_stream *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;
static struct cs_stream *streams;
static struct cs_stream *default_stream[GS_GPUS];
static int owner_of[GS_GPUS]; /* row + 1 */
static int visible[GS_GPUS], visible_count = -1;
static int sticky;
static __thread int current;

/* ---- devices ---- */

static void read_visible(void)
{
    const struct gs_state *state = gs_state();
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    for (int index = 0; state && !text && index < (int)state->gpus; index++)
        visible[visible_count++] = index;
    while (state && text && *text && visible_count < GS_GPUS) {
        char *end;
        long index = strtol(text, &end, 10);
        if (end == text || index < 0 || index >= (long)state->gpus)
            break;
        visible[visible_count++] = (int)index;
        text = *end == ',' ? end + 1 : "";
    }
}

int cs_device_count(void)
{
    pthread_mutex_lock(&lock);
    if (visible_count < 0)
        read_visible();
    pthread_mutex_unlock(&lock);
    return visible_count;
}

/* Take a row of the GPU's table of processes, by its byte of the lock file. With the lock held. */
static int claim(int gpu)
{
    if (owner_of[gpu])
        return owner_of[gpu] - 1;
    struct gs_gpu *at = &gs_state()->gpu[gpu];
    for (int row = 0; row < GS_PROCESSES; row++) {
        struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = gpu * GS_PROCESSES + row, .l_len = 1};
        if (fcntl(gs_lives(), F_SETLK, &byte))
            continue;
        gs_lock(&at->lock);
        at->processes[row] = (struct gs_process){.claimed = 1, .pid = getpid(), .memory_bytes = CONTEXT_BYTES};
        gs_unlock(&at->lock);
        owner_of[gpu] = row + 1;
        return row;
    }
    return 0;
}

int cs_set_device(int device)
{
    if (device < 0 || device >= cs_device_count())
        return 101;
    current = device;
    pthread_mutex_lock(&lock);
    claim(visible[device]);
    pthread_mutex_unlock(&lock);
    return 0;
}

int cs_get_device(void)
{
    return current;
}

int cs_gpu(void)
{
    return current < cs_device_count() ? visible[current] : -1;
}

struct gs_gpu *cs_gpu_of(struct cs_stream *stream)
{
    return &gs_state()->gpu[stream->gpu];
}

int cs_gpu_index(struct cs_stream *stream)
{
    return stream->gpu;
}

int cs_owner(struct cs_stream *stream)
{
    return stream->owner;
}

void cs_fail(int error)
{
    sticky = error;
}

int cs_error(int clear)
{
    (void)clear; /* errors of the device stay, as on real CUDA */
    return sticky;
}

int cs_memory(int64_t bytes)
{
    int gpu = cs_gpu();
    if (gpu < 0)
        return 100;
    pthread_mutex_lock(&lock);
    struct gs_process *process = &gs_state()->gpu[gpu].processes[claim(gpu)];
    int fits = bytes <= 0 || process->memory_bytes + (uint64_t)bytes <= GS_MEMORY_BYTES;
    if (fits)
        process->memory_bytes += (uint64_t)bytes;
    pthread_mutex_unlock(&lock);
    return fits ? 0 : 2;
}

/* ---- the worker ---- */

static void sleep_until_near(int64_t time_ns)
{
    if (time_ns - gs_now() > LOOK_AHEAD_NS)
        gs_sleep_until(time_ns - WAKE_EARLY_NS);
}

/* Enter [start, end) into the GPU's slots, as the continuation of the last one where they are alike. */
static void occupy(struct cs_stream *stream, int kind, int64_t start, int64_t end, const struct gs_flow *flow)
{
    struct gs_gpu *gpu = cs_gpu_of(stream);
    if (kind == KERNEL && stream->slot_kind == KERNEL &&
        gs_slot_extend(gpu, stream->slot, stream->slot_serial, start, end))
        return;
    stream->slot = gs_slot_add(gpu, stream->owner, &profiles[kind], flow, start, end, &stream->slot_serial);
    stream->slot_kind = kind;
}

static int64_t run_copy(struct cs_stream *stream, const struct operation *operation, int64_t ready)
{
    const struct gs_gpu *gpu = cs_gpu_of(stream);
    int inside = operation->copy_kind == 3;
    double rate = inside ? 2e12 : gs_pcie_rate(gpu);
    int64_t end = ready + COPY_LATENCY_NS + (int64_t)(operation->bytes / rate * 1e9);
    struct gs_flow flow = {.start_ns = ready};
    if (operation->copy_kind == 1)
        flow.pcie_rx = operation->bytes;
    else if (operation->copy_kind == 2)
        flow.pcie_tx = operation->bytes;
    occupy(stream, COPY, ready, end, &flow);
    return end;
}

static int64_t wait_for(struct cs_event *event, uint64_t version, int64_t ready)
{
    pthread_mutex_lock(&lock);
    while (event->done < version)
        pthread_cond_wait(&progress, &lock);
    int64_t time = event->time_ns;
    pthread_mutex_unlock(&lock);
    return time > ready ? time : ready;
}

static int64_t run(struct cs_stream *stream, struct operation *operation, int64_t ready)
{
    const struct gs_gpu *gpu = cs_gpu_of(stream);
    if (gpu->set.lost > 0 && operation->kind <= CALL) {
        cs_fail(999);
        if (operation->kind != CALL)
            return ready;
    }
    switch (operation->kind) {
    case KERNEL: {
        int64_t end = ready + (int64_t)(operation->seconds / gs_kernel_rate(gpu) * 1e9);
        occupy(stream, KERNEL, ready, end, NULL);
        return end;
    }
    case COPY:
        return run_copy(stream, operation, ready);
    case CALL:
        return operation->call(operation->data, stream, ready);
    case WAIT:
        return wait_for(operation->event, operation->version, ready);
    default:
        return ready;
    }
}

static void *worker(void *argument)
{
    struct cs_stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->scheduled == stream->queued)
            pthread_cond_wait(&stream->work, &lock);
        struct operation *operation = &stream->ring[stream->scheduled % QUEUE];
        int64_t ready = operation->queued_ns > stream->end_ns ? operation->queued_ns : stream->end_ns;
        pthread_mutex_unlock(&lock);
        sleep_until_near(ready);
        int64_t end = run(stream, operation, ready);
        pthread_mutex_lock(&lock);
        operation->end_ns = stream->end_ns = end;
        if (operation->kind == RECORD) {
            operation->event->done = operation->version;
            operation->event->time_ns = end;
        }
        stream->scheduled++;
        pthread_cond_broadcast(&progress);
    }
    return NULL;
}

/* ---- streams ---- */

static struct cs_stream *start(int device)
{
    struct cs_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    stream->magic = MAGIC;
    stream->device = device;
    stream->gpu = visible[device];
    stream->owner = claim(stream->gpu);
    stream->slot = -1;
    pthread_cond_init(&stream->work, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_t thread;
    int failed = pthread_create(&thread, &attributes, worker, stream);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(stream);
        return NULL;
    }
    pthread_setname_np(thread, "gpusim-stream");
    stream->next = streams;
    streams = stream;
    return stream;
}

struct cs_stream *cs_stream_new(void)
{
    if (cs_gpu() < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    struct cs_stream *stream = start(current);
    pthread_mutex_unlock(&lock);
    return stream;
}

/* The stream of a handle; 0, 1 and 2 are the device's default stream. NULL where it is none. */
struct cs_stream *cs_stream_of(void *handle)
{
    if ((uintptr_t)handle > 2) {
        struct cs_stream *stream = handle;
        return stream->magic == MAGIC ? stream : NULL;
    }
    int gpu = cs_gpu();
    if (gpu < 0)
        return NULL;
    pthread_mutex_lock(&lock);
    if (!default_stream[gpu])
        default_stream[gpu] = start(current);
    struct cs_stream *stream = default_stream[gpu];
    pthread_mutex_unlock(&lock);
    return stream;
}

static void retire(struct cs_stream *stream)
{
    int64_t now = gs_now();
    while (stream->retired < stream->scheduled && stream->ring[stream->retired % QUEUE].end_ns <= now)
        stream->retired++;
}

/* Put an operation on a stream; blocks while the queue is full. With the lock held. */
static int put(struct cs_stream *stream, struct operation operation)
{
    operation.queued_ns = gs_now();
    while (stream->queued - stream->retired >= QUEUE) {
        retire(stream);
        if (stream->queued - stream->retired < QUEUE)
            break;
        if (stream->retired == stream->scheduled) {
            pthread_cond_wait(&progress, &lock);
        } else {
            int64_t until = stream->ring[stream->retired % QUEUE].end_ns;
            pthread_mutex_unlock(&lock);
            gs_sleep_until(until);
            pthread_mutex_lock(&lock);
        }
    }
    stream->ring[stream->queued % QUEUE] = operation;
    if (stream->queued++ == stream->scheduled)
        pthread_cond_signal(&stream->work);
    return sticky;
}

static int put_alone(struct cs_stream *stream, struct operation operation)
{
    pthread_mutex_lock(&lock);
    int error = put(stream, operation);
    pthread_mutex_unlock(&lock);
    return error;
}

/* Seconds of work that a kernel's argument points to: a double of seconds, or an integer of nanoseconds. The bits of any double of a
 * microsecond and more are far beyond the nanoseconds of a day. */
double cs_work(const void *argument)
{
    uint64_t bits;
    double seconds;
    if (!argument)
        return 10e-6;
    memcpy(&bits, argument, sizeof bits);
    memcpy(&seconds, argument, sizeof seconds);
    return bits < 1ull << 47 ? bits / 1e9 : seconds;
}

int cs_kernel(struct cs_stream *stream, double seconds)
{
    if (!(seconds >= 0 && seconds < 3600))
        return 1;
    return put_alone(stream, (struct operation){.kind = KERNEL, .seconds = seconds});
}

int cs_copy(struct cs_stream *stream, uint64_t bytes, int kind)
{
    return put_alone(stream, (struct operation){.kind = COPY, .bytes = bytes, .copy_kind = kind});
}

int cs_queue_call(struct cs_stream *stream, cs_call call, void *data)
{
    return put_alone(stream, (struct operation){.kind = CALL, .call = call, .data = data});
}

/* When what is queued so far ends; waits until that is known. With the lock held. */
static int64_t known_end(struct cs_stream *stream)
{
    uint64_t target = stream->queued;
    while (stream->scheduled < target)
        pthread_cond_wait(&progress, &lock);
    if (!target)
        return 0;
    return stream->queued - target < QUEUE ? stream->ring[(target - 1) % QUEUE].end_ns : stream->end_ns;
}

int cs_sync(struct cs_stream *stream)
{
    pthread_mutex_lock(&lock);
    int64_t end = known_end(stream);
    pthread_mutex_unlock(&lock);
    gs_sleep_until(end);
    return sticky;
}

int cs_sync_device(void)
{
    int gpu = cs_gpu();
    if (gpu < 0)
        return 100;
    int64_t end = 0;
    pthread_mutex_lock(&lock);
    for (struct cs_stream *stream = streams; stream; stream = stream->next) {
        if (stream->gpu != gpu)
            continue;
        int64_t one = known_end(stream);
        end = one > end ? one : end;
    }
    pthread_mutex_unlock(&lock);
    gs_sleep_until(end);
    return sticky;
}

int cs_query(struct cs_stream *stream)
{
    pthread_mutex_lock(&lock);
    int done = stream->scheduled == stream->queued && stream->end_ns <= gs_now();
    pthread_mutex_unlock(&lock);
    return sticky ? sticky : done ? 0 : 600;
}

/* ---- events ---- */

struct cs_event *cs_event_new(void)
{
    return calloc(1, sizeof(struct cs_event));
}

int cs_event_record(struct cs_event *event, struct cs_stream *stream)
{
    pthread_mutex_lock(&lock);
    int error = put(stream, (struct operation){.kind = RECORD, .event = event, .version = ++event->recorded});
    pthread_mutex_unlock(&lock);
    return error;
}

int cs_event_wait(struct cs_event *event, struct cs_stream *stream)
{
    int error = 0;
    pthread_mutex_lock(&lock);
    if (event->recorded)
        error = put(stream, (struct operation){.kind = WAIT, .event = event, .version = event->recorded});
    pthread_mutex_unlock(&lock);
    return error;
}

int cs_event_sync(struct cs_event *event)
{
    pthread_mutex_lock(&lock);
    uint64_t version = event->recorded;
    while (event->done < version)
        pthread_cond_wait(&progress, &lock);
    int64_t end = event->time_ns;
    pthread_mutex_unlock(&lock);
    gs_sleep_until(end);
    return sticky;
}

/* 0 done, 600 not yet; its time. */
int cs_event_query(struct cs_event *event, int64_t *time_ns)
{
    pthread_mutex_lock(&lock);
    int done = event->done == event->recorded && event->time_ns <= gs_now();
    *time_ns = event->recorded ? event->time_ns : 0;
    pthread_mutex_unlock(&lock);
    return sticky ? sticky : done ? 0 : 600;
}
