/* libcuda.so.1: a few calls of the driver API. The emulated runtime does not come through here, the real one does. */
#include "gpusim.h"

#include <stdlib.h>

#define API __attribute__((visibility("default")))
typedef int CUresult;

#define STREAM_OR_FAIL(name, handle)                                                                                          \
    struct cs_stream *name = cs_stream_of(handle);                                                                            \
    if (!name)                                                                                                                \
    return cs_device_count() ? 400 : 100

API CUresult cuInit(unsigned flags)
{
    (void)flags;
    return cs_device_count() ? 0 : 100;
}

API CUresult cuDriverGetVersion(int *version)
{
    *version = 12040;
    return 0;
}

API CUresult cuDeviceGetCount(int *count)
{
    *count = cs_device_count();
    return 0;
}

API CUresult cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < cs_device_count() ? 0 : 101;
}

API CUresult cuCtxSynchronize(void)
{
    return cs_sync_device();
}

API CUresult cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    *stream = cs_stream_new();
    return *stream ? 0 : 100;
}

API CUresult cuStreamSynchronize(void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return cs_sync(stream);
}

API CUresult cuStreamQuery(void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return cs_query(stream);
}

API CUresult cuStreamWaitEvent(void *handle, void *event, unsigned flags)
{
    (void)flags;
    STREAM_OR_FAIL(stream, handle);
    return event ? cs_event_wait(event, stream) : 400;
}

API CUresult cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = cs_event_new();
    return *event ? 0 : 2;
}

API CUresult cuEventRecord(void *event, void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return event ? cs_event_record(event, stream) : 400;
}

API CUresult cuEventSynchronize(void *event)
{
    return event ? cs_event_sync(event) : 400;
}

API CUresult cuEventQuery(void *event)
{
    int64_t time;
    return event ? cs_event_query(event, &time) : 400;
}

API CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, void *handle, void **arguments, void **extra)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared, (void)extra;
    STREAM_OR_FAIL(stream, handle);
    return cs_kernel(stream, cs_work(arguments ? arguments[0] : NULL));
}

API CUresult cuGraphLaunch(void *graph, void *handle)
{
    STREAM_OR_FAIL(stream, handle);
    return cs_kernel(stream, cs_work(graph));
}

API CUresult cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *handle)
{
    (void)to, (void)from;
    STREAM_OR_FAIL(stream, handle);
    return cs_copy(stream, size, 1);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *handle)
{
    (void)to, (void)from;
    STREAM_OR_FAIL(stream, handle);
    return cs_copy(stream, size, 2);
}

static CUresult copy_and_wait(size_t size, int kind)
{
    STREAM_OR_FAIL(stream, NULL);
    int error = cs_copy(stream, size, kind);
    return error ? error : cs_sync(stream);
}

API CUresult cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
    (void)to, (void)from;
    return copy_and_wait(size, 1);
}

API CUresult cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size)
{
    (void)to, (void)from;
    return copy_and_wait(size, 2);
}
