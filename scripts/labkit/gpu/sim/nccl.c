/* libnccl.so.2: collectives between processes that meet in the shared state.
 *
 * Ring over all ranks, as many channels as there are GPUs per host, so that every NIC carries its part. It starts when the
 * last rank arrives and takes `steps` ring steps; a step lasts as long as the slowest link needs for its part of the chunk,
 * each link moves its part at its own full rate and is then idle. A kernel of the collective holds few SMs from a rank's arrival on.
 */
#define _GNU_SOURCE
#include "gpusim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define STEP_LATENCY_NS 8000
#define MESSAGE_STEPS 16
#define MAX_GROUP 4096

typedef enum {
    SUCCESS,
    UNHANDLED_CUDA,
    SYSTEM_ERROR,
    INTERNAL_ERROR,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    REMOTE_ERROR,
    IN_PROGRESS
} ncclResult_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
struct ncclComm {
    struct gs_comm *shared;
    int rank, size, users;
    uint64_t sequence, sent[GS_RANKS], received[GS_RANKS];
};
typedef struct ncclComm *ncclComm_t;

enum { ALL_REDUCE, MESSAGES };
struct part {
    int peer, receives;
    double bytes;
    uint64_t sequence;
};
struct job {
    ncclComm_t comm;
    int kind, count;
    double bytes;
    uint64_t sequence;
    struct part parts[];
};

static const struct gs_profile in_collective = {.sm = 0.12, .dram = 0.05, .occupancy = 0.03, .is_kernel = 1};

static double size_of(int type)
{
    static const double sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 0;
}

/* ---- timing ---- */

static uint32_t hosts(const struct gs_comm *shared)
{
    uint32_t mask = 0;
    for (uint32_t rank = 0; rank < shared->size; rank++)
        mask |= 1u << ((uint32_t)shared->gpu[rank] / gs_state()->per_host);
    return (uint32_t)__builtin_popcount(mask);
}

/* With the communicator locked, when the last rank has arrived. */
static void settle(struct gs_comm *shared, struct gs_op *op, double bytes)
{
    const struct gs_state *state = gs_state();
    uint32_t size = shared->size, spread = hosts(shared);
    double chunk = bytes / size, channels = (double)size / spread;
    op->steps = 2 * (size - 1);
    op->nic_bytes = spread > 1 ? chunk / channels : 0;
    op->nvlink_bytes = channels > 1 ? spread > 1 ? chunk * (channels - 1) / channels : chunk : 0;
    op->step_ns = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        op->nvlink_rate[rank] = gs_nvlink_rate(&state->gpu[shared->gpu[rank]]);
        op->nic_rate[rank] = gs_nic_rate(state, shared, shared->gpu[rank]);
        double inside = op->nvlink_bytes / op->nvlink_rate[rank] * 1e9, outside = op->nic_bytes / op->nic_rate[rank] * 1e9;
        double longest = inside > outside ? inside : outside;
        op->step_ns = longest > op->step_ns ? longest : op->step_ns;
    }
    op->step_ns += STEP_LATENCY_NS;
    op->start_ns = op->latest_ns;
    for (uint32_t rank = 0; op->nic_bytes > 0 && rank < size; rank++)
        op->start_ns = gs_nic_up_from(&state->gpu[shared->gpu[rank]], op->start_ns);
    op->end_ns = op->start_ns + (int64_t)(op->step_ns * op->steps) + STEP_LATENCY_NS;
}

static void raise_traffic(void)
{
    struct gs_state *state = gs_state();
    __atomic_add_fetch(&state->moving, 1, __ATOMIC_RELEASE);
    gs_wake(&state->moving);
}

static void let_go(ncclComm_t comm)
{
    if (__atomic_sub_fetch(&comm->users, 1, __ATOMIC_ACQ_REL) == 0)
        free(comm);
}

/* Wait for a futex word to be set, for as long as the GPU is there. */
static int resolved(uint32_t *word, const struct gs_gpu *gpu)
{
    while (!__atomic_load_n(word, __ATOMIC_ACQUIRE)) {
        if (gpu->set.lost > 0)
            return 0;
        gs_wait(word, 0, 200000000ll);
    }
    return 1;
}

static int64_t run_collective(void *data, struct cs_stream *stream, int64_t ready)
{
    struct job *job = data;
    ncclComm_t comm = job->comm;
    struct gs_comm *shared = comm->shared;
    struct gs_gpu *gpu = cs_gpu_of(stream);
    struct gs_op *op = &shared->ops[job->sequence % GS_OPS];
    uint64_t serial = 0;
    int64_t end = ready;
    if (gpu->set.lost > 0)
        goto out; /* never arrives: the others wait */
    gs_lock(&shared->lock);
    if (op->sequence != job->sequence) {
        memset(op, 0, sizeof *op);
        op->sequence = job->sequence;
    }
    op->latest_ns = ready > op->latest_ns ? ready : op->latest_ns;
    if (++op->arrived == shared->size) {
        settle(shared, op, job->bytes);
        __atomic_store_n(&op->resolved, 1, __ATOMIC_RELEASE);
        gs_wake(&op->resolved);
    }
    shared->touched_ns = gs_now();
    gs_unlock(&shared->lock);
    int slot = gs_slot_add(gpu, cs_owner(stream), &in_collective, NULL, ready, GS_FOREVER, &serial);
    if (resolved(&op->resolved, gpu)) {
        struct gs_flow flow = {
            .start_ns = op->start_ns,
            .step_ns = op->step_ns,
            .steps = op->steps,
            .nvlink_tx = op->nvlink_bytes,
            .nvlink_rx = op->nvlink_bytes,
            .nic_tx = op->nic_bytes,
            .nic_rx = op->nic_bytes,
            .nvlink_burst_ns = op->nvlink_bytes / op->nvlink_rate[comm->rank] * 1e9,
            .nic_burst_ns = op->nic_bytes / op->nic_rate[comm->rank] * 1e9,
        };
        end = op->end_ns;
        gs_slot_change(gpu, slot, serial, end, &flow);
        if (flow.nic_tx > 0)
            raise_traffic();
    } else {
        end = gs_now();
        gs_slot_change(gpu, slot, serial, end, NULL);
    }
out:
    let_go(comm);
    free(job);
    return end;
}

static struct gs_message *arrive(ncclComm_t comm, const struct part *part, int64_t ready)
{
    struct gs_comm *shared = comm->shared;
    int from = part->receives ? part->peer : comm->rank, to = part->receives ? comm->rank : part->peer;
    struct gs_message *message = &shared->messages[from][to][part->sequence % GS_OPS];
    gs_lock(&shared->lock);
    if (message->sequence != part->sequence) {
        memset(message, 0, sizeof *message);
        message->sequence = part->sequence;
    }
    message->ready_ns = ready > message->ready_ns ? ready : message->ready_ns;
    if (++message->arrived == 2) {
        const struct gs_state *state = gs_state();
        uint32_t one = (uint32_t)shared->gpu[from], other = (uint32_t)shared->gpu[to];
        message->over_nic = one / state->per_host != other / state->per_host;
        double a = message->over_nic ? gs_nic_rate(state, shared, (int)one) : gs_nvlink_rate(&state->gpu[one]);
        double b = message->over_nic ? gs_nic_rate(state, shared, (int)other) : gs_nvlink_rate(&state->gpu[other]);
        message->bytes = part->bytes;
        message->start_ns = message->ready_ns;
        if (message->over_nic)
            message->start_ns = gs_nic_up_from(&state->gpu[other], gs_nic_up_from(&state->gpu[one], message->ready_ns));
        message->end_ns = message->start_ns + STEP_LATENCY_NS + (int64_t)(part->bytes / (a < b ? a : b) * 1e9);
        __atomic_store_n(&message->resolved, 1, __ATOMIC_RELEASE);
        gs_wake(&message->resolved);
    }
    shared->touched_ns = gs_now();
    gs_unlock(&shared->lock);
    return message;
}

/* Traffic of one message as one of its ends sees it. */
static void carry(struct cs_stream *stream, ncclComm_t comm, const struct part *part, const struct gs_message *message, int64_t end)
{
    static const struct gs_profile none;
    struct gs_gpu *gpu = cs_gpu_of(stream);
    double rate = message->over_nic ? gs_nic_rate(gs_state(), comm->shared, cs_gpu_index(stream)) : gs_nvlink_rate(gpu);
    double bytes = message->bytes / MESSAGE_STEPS, tx = part->receives ? 0 : bytes, rx = part->receives ? bytes : 0;
    struct gs_flow flow = {
        .start_ns = message->start_ns,
        .steps = MESSAGE_STEPS,
        .step_ns = (double)(message->end_ns - message->start_ns) / MESSAGE_STEPS,
        .nvlink_burst_ns = bytes / rate * 1e9,
        .nic_burst_ns = bytes / rate * 1e9,
        .nvlink_tx = message->over_nic ? 0 : tx,
        .nvlink_rx = message->over_nic ? 0 : rx,
        .nic_tx = message->over_nic ? tx : 0,
        .nic_rx = message->over_nic ? rx : 0,
    };
    uint64_t serial;
    gs_slot_add(gpu, cs_owner(stream), &none, &flow, message->start_ns, end, &serial);
    if (message->over_nic)
        raise_traffic();
}

static int64_t run_messages(void *data, struct cs_stream *stream, int64_t ready)
{
    struct job *job = data;
    ncclComm_t comm = job->comm;
    struct gs_gpu *gpu = cs_gpu_of(stream);
    struct gs_message *messages[MAX_GROUP];
    uint64_t serial = 0;
    int64_t end = ready;
    if (gpu->set.lost > 0)
        goto out;
    for (int index = 0; index < job->count; index++)
        messages[index] = arrive(comm, &job->parts[index], ready);
    int slot = gs_slot_add(gpu, cs_owner(stream), &in_collective, NULL, ready, GS_FOREVER, &serial);
    for (int index = 0; index < job->count; index++) {
        if (!resolved(&messages[index]->resolved, gpu)) {
            end = gs_now();
            break;
        }
        struct gs_message message = *messages[index];
        end = message.end_ns > end ? message.end_ns : end;
        carry(stream, comm, &job->parts[index], &message, message.end_ns);
    }
    gs_slot_change(gpu, slot, serial, end, NULL);
out:
    let_go(comm);
    free(job);
    return end;
}

/* ---- groups ---- */

struct pending {
    ncclComm_t comm;
    void *stream;
    int kind;
    double bytes;
    struct part part;
};
static __thread struct pending group[MAX_GROUP];
static __thread int depth, pending_count;

static ncclResult_t queue(ncclComm_t comm, void *handle, struct job *job)
{
    struct cs_stream *stream = cs_stream_of(handle);
    if (!stream || !job) {
        free(job);
        return INVALID_ARGUMENT;
    }
    __atomic_add_fetch(&comm->users, 1, __ATOMIC_ACQ_REL);
    return cs_queue_call(stream, job->kind == MESSAGES ? run_messages : run_collective, job) ? UNHANDLED_CUDA : SUCCESS;
}

static ncclResult_t queue_collective(const struct pending *one)
{
    struct job *job = calloc(1, sizeof *job);
    if (job)
        *job = (struct job){.comm = one->comm, .kind = one->kind, .bytes = one->bytes, .sequence = ++one->comm->sequence};
    return queue(one->comm, one->stream, job);
}

/* Messages of one communicator on one stream go out together, as one kernel. */
static ncclResult_t queue_messages(int first)
{
    struct job *job = calloc(1, sizeof *job + (size_t)pending_count * sizeof(struct part));
    ncclComm_t comm = group[first].comm;
    void *stream = group[first].stream;
    for (int index = first; job && index < pending_count; index++) {
        struct pending *one = &group[index];
        if (one->kind != MESSAGES || one->comm != comm || one->stream != stream)
            continue;
        one->part.sequence = one->part.receives ? ++comm->received[one->part.peer] : ++comm->sent[one->part.peer];
        job->parts[job->count++] = one->part;
        one->comm = NULL;
    }
    if (job) {
        job->comm = comm;
        job->kind = MESSAGES;
    }
    return queue(comm, stream, job);
}

/* As in the real library, an exported function calls no exported one: a probe on it sees only what the job called. */
static ncclResult_t close_group(void)
{
    if (depth <= 0)
        return INVALID_USAGE;
    if (--depth)
        return SUCCESS;
    ncclResult_t result = SUCCESS;
    for (int index = 0; index < pending_count && result == SUCCESS; index++)
        if (group[index].comm)
            result = group[index].kind == MESSAGES ? queue_messages(index) : queue_collective(&group[index]);
    pending_count = 0;
    return result;
}

API ncclResult_t ncclGroupStart(void)
{
    depth++;
    return SUCCESS;
}

API ncclResult_t ncclGroupEnd(void)
{
    return close_group();
}

static ncclResult_t submit(struct pending one)
{
    if (!one.comm || !(one.bytes >= 0))
        return INVALID_ARGUMENT;
    if (cs_error(0))
        return UNHANDLED_CUDA;
    if (pending_count >= MAX_GROUP)
        return INTERNAL_ERROR;
    depth++;
    group[pending_count++] = one;
    return close_group();
}

/* ---- operations ---- */

API ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, int type, int op, ncclComm_t comm, void *stream)
{
    (void)from, (void)to, (void)op;
    return submit((struct pending){.comm = comm, .stream = stream, .kind = ALL_REDUCE, .bytes = count * size_of(type)});
}

static ncclResult_t message(size_t count, int type, int peer, int receives, ncclComm_t comm, void *stream)
{
    if (!comm || peer < 0 || peer >= comm->size)
        return INVALID_ARGUMENT;
    double bytes = count * size_of(type);
    struct part part = {.peer = peer, .receives = receives, .bytes = bytes};
    return submit((struct pending){.comm = comm, .stream = stream, .kind = MESSAGES, .bytes = bytes, .part = part});
}

API ncclResult_t ncclSend(const void *from, size_t count, int type, int peer, ncclComm_t comm, void *stream)
{
    (void)from;
    return message(count, type, peer, 0, comm, stream);
}

API ncclResult_t ncclRecv(void *to, size_t count, int type, int peer, ncclComm_t comm, void *stream)
{
    (void)to;
    return message(count, type, peer, 1, comm, stream);
}

/* ---- communicators ---- */

API const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",         "unhandled cuda error", "unhandled system error",  "internal error",
                                        "invalid argument", "invalid usage",        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    int handle = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = handle < 0 ? -1 : read(handle, id->internal, sizeof id->internal);
    if (handle >= 0)
        close(handle);
    return got == sizeof id->internal ? SUCCESS : SYSTEM_ERROR;
}

/* The entry of an id: the one there is, else the one unused for longest. A killed job's entry is in nobody's way. */
static struct gs_comm *enter(const ncclUniqueId *id, uint32_t size, uint32_t rank)
{
    struct gs_state *state = gs_state();
    struct gs_comm *found = NULL, *oldest = &state->comm[0];
    gs_lock(&state->comm_lock);
    for (int index = 0; index < GS_COMMS && !found; index++) {
        struct gs_comm *one = &state->comm[index];
        if (one->generation && !memcmp(one->id, id->internal, sizeof one->id))
            found = one;
        else if (one->touched_ns < oldest->touched_ns)
            oldest = one;
    }
    if (!found) {
        found = oldest;
        gs_lock(&found->lock);
        memcpy(found->id, id->internal, sizeof found->id);
        found->size = size;
        found->joined = 0;
        memset(found->has_joined, 0, sizeof found->has_joined);
        memset(found->ops, 0, sizeof found->ops);
        memset(found->messages, 0, sizeof found->messages);
        found->generation = ++state->comm_generation;
        gs_unlock(&found->lock);
    }
    gs_lock(&found->lock);
    found->touched_ns = gs_now();
    if (found->size != size || found->has_joined[rank]) {
        gs_unlock(&found->lock);
        gs_unlock(&state->comm_lock);
        return NULL;
    }
    found->has_joined[rank] = 1;
    found->gpu[rank] = cs_gpu();
    __atomic_add_fetch(&found->joined, 1, __ATOMIC_ACQ_REL);
    gs_wake(&found->joined);
    gs_unlock(&found->lock);
    gs_unlock(&state->comm_lock);
    return found;
}

API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    if (!comm || size < 1 || size > GS_RANKS || rank < 0 || rank >= size)
        return INVALID_ARGUMENT;
    if (cs_gpu() < 0 || cs_set_device(cs_get_device()))
        return UNHANDLED_CUDA;
    struct gs_comm *shared = enter(&id, (uint32_t)size, (uint32_t)rank);
    if (!shared)
        return INVALID_USAGE;
    uint32_t joined;
    while ((joined = __atomic_load_n(&shared->joined, __ATOMIC_ACQUIRE)) < (uint32_t)size)
        gs_wait(&shared->joined, joined, 500000000ll);
    *comm = calloc(1, sizeof **comm);
    if (!*comm)
        return SYSTEM_ERROR;
    **comm = (struct ncclComm){.shared = shared, .rank = rank, .size = size, .users = 1};
    return SUCCESS;
}

/* Waits for what is queued, as the real one does. */
API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return INVALID_ARGUMENT;
    while (__atomic_load_n(&comm->users, __ATOMIC_ACQUIRE) > 1)
        gs_sleep_until(gs_now() + 1000000);
    let_go(comm);
    return SUCCESS;
}
