/* libcudart.so.12: the runtime API as jobs call it. A kernel's first argument points to its work at full clock, see cs_work(). */
#include "gpusim.h"

#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
typedef int cudaError_t;
typedef struct {
    unsigned x, y, z;
} dim3;

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100, INVALID_HANDLE = 400, NOT_READY = 600 };
/* Addresses of device memory: never read or written, so they need not exist. */
static uint64_t device_memory = 0x7f0000000000ull;

struct allocation {
    void *address;
    size_t size;
    struct allocation *next;
};
static struct allocation *allocations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int last_error;

static cudaError_t say(int error)
{
    if (error && error != NOT_READY)
        last_error = error;
    return error;
}

#define STREAM_OR_FAIL(name, handle)                                                                                          \
    struct cs_stream *name = cs_stream_of(handle);                                                                            \
    if (!name)                                                                                                                \
    return say(cs_device_count() ? INVALID_HANDLE : NO_DEVICE)

API cudaError_t cudaGetDeviceCount(int *count)
{
    *count = cs_device_count();
    return say(*count ? SUCCESS : NO_DEVICE);
}

API cudaError_t cudaSetDevice(int device)
{
    return say(cs_set_device(device));
}

API cudaError_t cudaGetDevice(int *device)
{
    *device = cs_get_device();
    return say(cs_device_count() ? SUCCESS : NO_DEVICE);
}

API cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags; /* who waits sleeps, always */
    return say(cs_device_count() ? SUCCESS : NO_DEVICE);
}

API cudaError_t cudaGetLastError(void)
{
    int error = last_error ? last_error : cs_error(1);
    last_error = 0;
    return error;
}

API cudaError_t cudaPeekAtLastError(void)
{
    return last_error ? last_error : cs_error(0);
}

API const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case SUCCESS:
        return "no error";
    case INVALID_VALUE:
        return "invalid argument";
    case OUT_OF_MEMORY:
        return "out of memory";
    case NO_DEVICE:
        return "no CUDA-capable device is detected";
    case 101:
        return "invalid device ordinal";
    case INVALID_HANDLE:
        return "invalid resource handle";
    case NOT_READY:
        return "device not ready";
    default:
        return "unknown error";
    }
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 12040;
    return SUCCESS;
}

API cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12040;
    return SUCCESS;
}

/* ---- streams ---- */

/* As in the real library, an exported function calls no exported one: a probe on it sees only what the job called. */
static cudaError_t new_stream(void **stream)
{
    *stream = cs_stream_new();
    return say(*stream ? SUCCESS : NO_DEVICE);
}

API cudaError_t cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return new_stream(stream);
}

API cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    (void)flags;
    return new_stream(stream);
}

API cudaError_t cudaStreamCreate(void **stream)
{
    return new_stream(stream);
}

API cudaError_t cudaStreamDestroy(void *handle)
{
    if ((uintptr_t)handle <= 2)
        return say(INVALID_HANDLE);
    STREAM_OR_FAIL(stream, handle);
    cs_stream_free(stream);
    return SUCCESS;
}

API cudaError_t cudaStreamSynchronize(void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return say(cs_sync(stream));
}

API cudaError_t cudaStreamQuery(void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return say(cs_query(stream));
}

API cudaError_t cudaStreamWaitEvent(void *handle, void *event, unsigned flags)
{
    (void)flags;
    STREAM_OR_FAIL(stream, handle);
    return say(event ? cs_event_wait(event, stream) : INVALID_HANDLE);
}

API cudaError_t cudaDeviceSynchronize(void)
{
    return say(cs_sync_device());
}

/* ---- events ---- */

static cudaError_t new_event(void **event)
{
    *event = cs_event_new();
    return say(*event ? SUCCESS : OUT_OF_MEMORY);
}

API cudaError_t cudaEventCreateWithFlags(void **event, unsigned flags)
{
    (void)flags;
    return new_event(event);
}

API cudaError_t cudaEventCreate(void **event)
{
    return new_event(event);
}

API cudaError_t cudaEventRecord(void *event, void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return say(event ? cs_event_record(event, stream) : INVALID_HANDLE);
}

API cudaError_t cudaEventSynchronize(void *event)
{
    return say(event ? cs_event_sync(event) : INVALID_HANDLE);
}

API cudaError_t cudaEventQuery(void *event)
{
    int64_t time;
    return say(event ? cs_event_query(event, &time) : INVALID_HANDLE);
}

API cudaError_t cudaEventElapsedTime(float *milliseconds, void *from, void *to)
{
    int64_t start, end;
    if (!from || !to)
        return say(INVALID_HANDLE);
    int error = cs_event_query(from, &start);
    if (!error)
        error = cs_event_query(to, &end);
    if (!error)
        *milliseconds = (float)((end - start) / 1e6);
    return say(error);
}

API cudaError_t cudaEventDestroy(void *event)
{
    if (!event)
        return say(INVALID_HANDLE);
    cs_event_free(event);
    return SUCCESS;
}

/* ---- memory ---- */

API cudaError_t cudaMalloc(void **address, size_t size)
{
    int error = cs_memory((int64_t)size);
    if (error)
        return say(error);
    struct allocation *allocation = malloc(sizeof *allocation);
    if (!allocation)
        return say(OUT_OF_MEMORY);
    uint64_t at = __atomic_fetch_add(&device_memory, (size + 511) & ~511ull, __ATOMIC_RELAXED);
    *address = (void *)at;
    pthread_mutex_lock(&lock);
    *allocation = (struct allocation){(void *)at, size, allocations};
    allocations = allocation;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

API cudaError_t cudaFree(void *address)
{
    if (!address)
        return SUCCESS;
    int error = cs_sync_device(); /* as the real one does */
    pthread_mutex_lock(&lock);
    struct allocation **at = &allocations, *found;
    while (*at && (*at)->address != address)
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    if (!found)
        return say(INVALID_VALUE);
    cs_memory(-(int64_t)found->size);
    free(found);
    return say(error);
}

static cudaError_t host_memory(void **address, size_t size)
{
    *address = malloc(size);
    return say(*address ? SUCCESS : OUT_OF_MEMORY);
}

API cudaError_t cudaMallocHost(void **address, size_t size)
{
    return host_memory(address, size);
}

API cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags)
{
    (void)flags;
    return host_memory(address, size);
}

API cudaError_t cudaFreeHost(void *address)
{
    free(address);
    return SUCCESS;
}

/* Kinds: 0 host to host, 1 host to device, 2 device to host, 3 device to device, 4 by address. */
static cudaError_t copy(void *to, const void *from, size_t size, int kind, void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    if (kind < 0 || kind > 4)
        return say(INVALID_VALUE);
    if (kind == 4) {
        int to_device = (uint64_t)to >= 0x7f0000000000ull && (uint64_t)to < device_memory;
        int from_device = (uint64_t)from >= 0x7f0000000000ull && (uint64_t)from < device_memory;
        kind = to_device && from_device ? 3 : to_device ? 1 : from_device ? 2 : 0;
    }
    if (kind == 0) {
        memcpy(to, from, size);
        return SUCCESS;
    }
    return say(cs_copy(stream, size, kind));
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *handle)
{
    return copy(to, from, size, kind, handle);
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    int error = copy(to, from, size, kind, NULL);
    if (error)
        return error;
    STREAM_OR_FAIL(stream, NULL);
    return say(cs_sync(stream));
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t size, void *handle)
{
    (void)to, (void)value;
    STREAM_OR_FAIL(stream, handle);
    return say(cs_copy(stream, size, 3));
}

API cudaError_t cudaMemset(void *to, int value, size_t size)
{
    (void)to, (void)value;
    STREAM_OR_FAIL(stream, NULL);
    return say(cs_copy(stream, size, 3));
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    int gpu = cs_gpu();
    if (gpu < 0)
        return say(NO_DEVICE);
    uint64_t used = 0;
    for (int row = 0; row < GS_PROCESSES; row++)
        used += gs_state()->gpu[gpu].processes[row].claimed ? gs_state()->gpu[gpu].processes[row].memory_bytes : 0;
    *total_bytes = GS_MEMORY_BYTES;
    *free_bytes = used < GS_MEMORY_BYTES ? GS_MEMORY_BYTES - used : 0;
    return SUCCESS;
}

/* ---- kernels ---- */

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, void *handle)
{
    (void)function, (void)grid, (void)block, (void)shared;
    STREAM_OR_FAIL(stream, handle);
    return say(cs_kernel(stream, cs_work(arguments ? arguments[0] : NULL)));
}

/* The attributes, which follow in the configuration, change nothing here. */
struct launch_configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

API cudaError_t cudaLaunchKernelExC(const struct launch_configuration *configuration, const void *function, void **arguments)
{
    (void)function;
    STREAM_OR_FAIL(stream, configuration->stream);
    return say(cs_kernel(stream, cs_work(arguments ? arguments[0] : NULL)));
}

/* The executable graph is the address of its work. */
API cudaError_t cudaGraphLaunch(void *graph, void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return say(cs_kernel(stream, cs_work(graph)));
}
