/* NVML continued: processes and events. */
#include "nvml.h"

#include <stdlib.h>

/* ---- processes ---- */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
struct user {
    unsigned pid;
    unsigned long long memory_bytes;
    double utilisation;
};

/* Who is on the GPU: living processes with a context, and the scenario's foreign one. */
static unsigned users(nvmlDevice_t device, struct user *found)
{
    unsigned count = 0;
    for (int row = 0; row < GS_PROCESSES; row++) {
        int pid = gs_process_pid(gs_state(), nvml_index(device), row, gs_lives());
        const struct gs_process *process = &device->processes[row];
        if (pid)
            found[count++] = (struct user){(unsigned)pid, process->memory_bytes, process->utilisation};
    }
    if (device->set.foreign_pid > 0)
        found[count++] = (struct user){(unsigned)device->set.foreign_pid, (unsigned long long)device->set.foreign_memory_bytes,
                                       device->set.foreign_share * 0.9};
    return count;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
    struct user found[GS_PROCESSES + 1];
    ENTER(device);
    unsigned there = users(device, found), room = *count;
    gs_unlock(&device->lock);
    *count = there;
    if (there > room || (there && !processes))
        return INSUFFICIENT_SIZE;
    for (unsigned index = 0; index < there; index++)
        processes[index] = (nvmlProcessInfo_t){found[index].pid, found[index].memory_bytes, 0xffffffff, 0xffffffff};
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *processes)
{
    (void)processes;
    ENTER(device);
    *count = 0;
    LEAVE(device);
}

/* One value per process, of the last sample period. */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                                 unsigned long long since_us)
{
    struct user found[GS_PROCESSES + 1];
    ENTER(device);
    unsigned there = users(device, found), room = *count;
    unsigned long long time_us = device->samples_taken ? (unsigned long long)(device->next_sample_ns - GS_SAMPLE_NS) / 1000 : 0;
    gs_unlock(&device->lock);
    *count = there;
    if (!there || time_us <= since_us)
        return NOT_FOUND;
    if (there > room || !samples)
        return INSUFFICIENT_SIZE;
    for (unsigned index = 0; index < there; index++)
        samples[index] = (nvmlProcessUtilizationSample_t){found[index].pid, time_us, percent(found[index].utilisation),
                                                          percent(found[index].utilisation * 0.55), 0, 0};
    return SUCCESS;
}

/* ---- events ---- */

#define EVENT_XID 0x8ull
struct event_set {
    unsigned long long kinds[GS_GPUS];
    uint64_t seen[GS_GPUS];
};
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

API nvmlReturn_t nvmlEventSetCreate(struct event_set **set)
{
    *set = calloc(1, sizeof **set);
    return *set ? SUCCESS : MEMORY;
}

API nvmlReturn_t nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *kinds)
{
    ENTER(device);
    *kinds = EVENT_XID | 0x1 | 0x2;
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long kinds, struct event_set *set)
{
    if (!set)
        return INVALID_ARGUMENT;
    ENTER(device);
    set->kinds[nvml_index(device)] = kinds;
    set->seen[nvml_index(device)] = device->xid_count;
    LEAVE_AS(device, kinds & ~(EVENT_XID | 0x3ull) ? NOT_SUPPORTED : SUCCESS);
}

static int next_event(struct event_set *set, nvmlEventData_t *event)
{
    struct gs_state *state = gs_state();
    for (int index = 0; index < (int)state->gpus; index++) {
        struct gs_gpu *gpu = &state->gpu[index];
        if (!(set->kinds[index] & EVENT_XID) || set->seen[index] >= __atomic_load_n(&gpu->xid_count, __ATOMIC_ACQUIRE))
            continue;
        gs_lock(&gpu->lock);
        if (gpu->xid_count - set->seen[index] > GS_XIDS)
            set->seen[index] = gpu->xid_count - GS_XIDS;
        uint64_t number = gpu->xids[set->seen[index] % GS_XIDS].number;
        set->seen[index]++;
        gs_unlock(&gpu->lock);
        *event = (nvmlEventData_t){gpu, EVENT_XID, number, 0xffffffff, 0xffffffff};
        return 1;
    }
    return 0;
}

API nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, nvmlEventData_t *event, unsigned timeout_ms)
{
    if (!set || !event || !gs_state())
        return INVALID_ARGUMENT;
    int64_t deadline = gs_now() + (int64_t)timeout_ms * 1000000;
    while (!next_event(set, event)) {
        int64_t now = gs_now();
        if (now >= deadline)
            return TIMEOUT;
        gs_sleep_until(now + 10000000 < deadline ? now + 10000000 : deadline);
    }
    return SUCCESS;
}
