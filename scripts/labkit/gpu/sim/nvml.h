/* What the parts of the emulated NVML share. */
#ifndef GPUSIM_NVML_H
#define GPUSIM_NVML_H

#include "gpusim.h"

#define API __attribute__((visibility("default")))
typedef unsigned nvmlReturn_t;
typedef struct gs_gpu *nvmlDevice_t;

enum {
    SUCCESS,
    UNINITIALIZED,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT,
    GPU_IS_LOST = 15,
    MEMORY = 20,
};

typedef union {
    double d;
    unsigned ui;
    unsigned long ul;
    unsigned long long ull;
    long long sll;
    int si;
    unsigned short us;
} nvmlValue_t;
enum { TYPE_DOUBLE, TYPE_UINT, TYPE_ULONG, TYPE_ULONGLONG };

/* Check a handle, lock its GPU and bring it up to now. LEAVE() with what was read. */
nvmlReturn_t nvml_enter(nvmlDevice_t device);
int nvml_index(nvmlDevice_t device);
unsigned nvml_mhz(double hz);
int nvml_temperature(const struct gs_gpu *gpu);
int nvml_memory_temperature(const struct gs_gpu *gpu);
double nvml_power_w(const struct gs_gpu *gpu, int samples);
double nvml_power_now_w(const struct gs_gpu *gpu);
unsigned long long nvml_link_errors(const struct gs_gpu *gpu, unsigned link, unsigned counter);
int nvml_link_active(const struct gs_gpu *gpu, unsigned link);
double nvml_sm_clock_hz(const struct gs_gpu *gpu);

#define ENTER(device)                                                                                                         \
    nvmlReturn_t entered = nvml_enter(device);                                                                                \
    if (entered)                                                                                                              \
    return entered
#define LEAVE(device) return (gs_unlock(&(device)->lock), SUCCESS)
#define LEAVE_AS(device, result) return (gs_unlock(&(device)->lock), (result))

#define GETTER(name, type, value)                                                                                             \
    API nvmlReturn_t name(nvmlDevice_t device, type *result)                                                                  \
    {                                                                                                                         \
        ENTER(device);                                                                                                        \
        *result = (type)(value);                                                                                              \
        LEAVE(device);                                                                                                        \
    }

/* The sums at the end of a sample period of 1/6 s; all zero before the first. */
static inline const struct gs_sample *last_sample(const struct gs_gpu *gpu, uint64_t back)
{
    static const struct gs_sample none;
    return gpu->samples_taken > back ? &gpu->samples[(gpu->samples_taken - 1 - back) % GS_SAMPLES] : &none;
}

static inline unsigned percent(double share)
{
    return share <= 0 ? 0 : share >= 1 ? 100 : (unsigned)(share * 100 + 0.5);
}

#define TEMPERATURE_SHUTDOWN 95
#define TEMPERATURE_SLOWDOWN 87
#define TEMPERATURE_MEMORY_MAX 95
#define TEMPERATURE_GPU_MAX 85

#endif
