/* libcudart.so.12: the runtime API as jobs call it. A kernel's first argument points to its work at full clock, see cs_work(). */
#include "gpusim.h"

#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
typedef int cudaError_t;
typedef struct {
    unsigned x, y, z;
} dim3;

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE_FUNCTION = 98, NO_DEVICE = 100, INVALID_HANDLE = 400, NOT_READY = 600 };
/* Addresses of device memory: never read or written, so they need not exist. */
static uint64_t device_memory = 0x7f0000000000ull;
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

API cudaError_t cudaGetLastError(void)
{
    int error = last_error ? last_error : cs_error(1);
    last_error = 0;
    return error;
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

/* ---- streams ---- */

/* As in the real library, an exported function calls no exported one: a probe on it sees only what the job called. */
static cudaError_t new_stream(void **stream)
{
    *stream = cs_stream_new();
    return say(*stream ? SUCCESS : NO_DEVICE);
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

/* ---- memory ---- */

API cudaError_t cudaMalloc(void **address, size_t size)
{
    int error = cs_memory((int64_t)size);
    if (error)
        return say(error);
    *address = (void *)__atomic_fetch_add(&device_memory, (size + 511) & ~511ull, __ATOMIC_RELAXED);
    return SUCCESS;
}

API cudaError_t cudaMallocHost(void **address, size_t size)
{
    *address = malloc(size);
    return say(*address ? SUCCESS : OUT_OF_MEMORY);
}

/* Kinds: 0 host to host, 1 host to device, 2 device to host, 3 device to device, 4 by address. */
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *handle)
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

/* ---- kernels ---- */

static cudaError_t launch(void **arguments, void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return say(cs_kernel(stream, cs_work(arguments ? arguments[0] : NULL)));
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, void *handle)
{
    (void)function, (void)grid, (void)block, (void)shared;
    return launch(arguments, handle);
}

/* What CUDA 13 compiles of kernel<<<...>>>: the kernel's handle, asked for once by the address of its host function. */
API cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *handle)
{
    (void)grid, (void)block, (void)shared;
    return kernel ? launch(arguments, handle) : say(INVALID_HANDLE);
}

/* Registered kernels: host functions, and the handles that stand for them. */
#define MOST_KERNELS 1024
static struct {
    const void *host;
    const char *name;
} kernels[MOST_KERNELS];
static int kernel_count;

API cudaError_t __cudaGetKernel(void **kernel, const void *host)
{
    for (int i = 0; i < kernel_count; i++)
        if (kernels[i].host == host) {
            *kernel = &kernels[i];
            return SUCCESS;
        }
    return say(INVALID_DEVICE_FUNCTION);
}

API void **__cudaRegisterFatBinary(const void *descriptor)
{
    static const void *last;
    last = descriptor;
    return (void **)&last;
}

API void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread, void *block,
                                void *block_size, void *grid_size, int *warp_size)
{
    (void)handle, (void)device, (void)limit, (void)thread, (void)block, (void)block_size, (void)grid_size, (void)warp_size;
    if (kernel_count < MOST_KERNELS) {
        kernels[kernel_count].host = host;
        kernels[kernel_count++].name = name;
    }
}
