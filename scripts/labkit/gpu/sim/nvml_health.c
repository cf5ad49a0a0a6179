/* NVML continued: clocks, power, temperature, use, errors of the memory. */
#define _GNU_SOURCE
#include "nvml.h"

#include <string.h>

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;
typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

/* ---- clocks, power, temperature ---- */

unsigned nvml_mhz(double hz)
{
    return (unsigned)(hz / 1e6 + 0.5);
}

double nvml_sm_clock_hz(const struct gs_gpu *gpu)
{
    for (int row = 0; row < GS_PROCESSES; row++)
        if (gpu->processes[row].claimed)
            return gs_clock_hz(gpu);
    return gpu->set.foreign_pid > 0 ? gs_clock_hz(gpu) : GS_CLOCK_IDLE_HZ;
}

static double clock_of(const struct gs_gpu *gpu, unsigned kind, int which)
{
    if (kind == 2)
        return GS_MEMORY_CLOCK_HZ;
    double maximum = kind == 3 ? 1545e6 : GS_CLOCK_MAX_HZ;
    double now = nvml_sm_clock_hz(gpu) * (kind == 3 ? 0.78 : 1);
    return which == 0 ? now : which == 1 ? gpu->set.clock_limit_hz : maximum;
}

#define CLOCK_GETTER(name, which)                                                                                             \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned kind, unsigned *mhz)                                                  \
    {                                                                                                                         \
        if (kind > 3)                                                                                                         \
            return INVALID_ARGUMENT;                                                                                          \
        ENTER(device);                                                                                                        \
        *mhz = nvml_mhz(clock_of(device, kind, which));                                                                       \
        LEAVE(device);                                                                                                        \
    }

CLOCK_GETTER(nvmlDeviceGetClockInfo, 0)
CLOCK_GETTER(nvmlDeviceGetApplicationsClock, 1)
CLOCK_GETTER(nvmlDeviceGetDefaultApplicationsClock, 2)
CLOCK_GETTER(nvmlDeviceGetMaxClockInfo, 2)

GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, gs_reasons(device))
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, gs_reasons(device))
GETTER(nvmlDeviceGetPerformanceState, unsigned, 0)

/* Mean over the last samples of 1/6 s. */
double nvml_power_w(const struct gs_gpu *gpu, int samples)
{
    double sum = 0;
    int count = 0;
    for (; count < samples && (uint64_t)count < gpu->samples_taken; count++)
        sum += gpu->samples[(gpu->samples_taken - 1 - (uint64_t)count) % GS_SAMPLES].power_w;
    return count ? sum / count : GS_POWER_IDLE_W;
}

double nvml_power_now_w(const struct gs_gpu *gpu)
{
    double sm = 0.9 * gpu->set.foreign_share, dram = 0.5 * gpu->set.foreign_share, own = 1 - gpu->set.foreign_share;
    for (int index = 0; index < GS_SLOTS; index++) {
        const struct gs_slot *slot = &gpu->slots[index];
        if (slot->serial && slot->start_ns <= gpu->advanced_ns && slot->end_ns > gpu->advanced_ns) {
            sm += slot->profile.sm * own;
            dram += slot->profile.dram * own;
        }
    }
    return GS_POWER_IDLE_W +
           GS_POWER_SPAN_W * gs_clock_hz(gpu) / GS_CLOCK_MAX_HZ * gpu->set.power_w_factor * (0.7 * sm + 0.3 * dram);
}

GETTER(nvmlDeviceGetPowerUsage, unsigned, nvml_power_w(device, 6) * 1e3)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, device->set.power_cap_w * 1e3)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, GS_POWER_CAP_W * 1e3)

int nvml_temperature(const struct gs_gpu *gpu)
{
    return (int)(gpu->set.temperature_c > 0 ? gpu->set.temperature_c : 27 + gpu->smooth_power_w * 0.065);
}

int nvml_memory_temperature(const struct gs_gpu *gpu)
{
    return gpu->set.memory_temperature_c > 0 ? (int)gpu->set.memory_temperature_c : nvml_temperature(gpu) + 8;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    if (sensor)
        return INVALID_ARGUMENT;
    ENTER(device);
    *celsius = (unsigned)nvml_temperature(device);
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned kind, unsigned *celsius)
{
    static const unsigned thresholds[] = {TEMPERATURE_SHUTDOWN, TEMPERATURE_SLOWDOWN, TEMPERATURE_MEMORY_MAX, TEMPERATURE_GPU_MAX};
    ENTER(device);
    if (kind < 4)
        *celsius = thresholds[kind];
    LEAVE_AS(device, kind < 4 ? SUCCESS : NOT_SUPPORTED);
}

/* ---- use ---- */

/* Over the last full sample period, as the driver does. */
API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    ENTER(device);
    const struct gs_sample *now = last_sample(device, 0), *before = last_sample(device, 1);
    rates->gpu = percent((now->sums.kernel_s - before->sums.kernel_s) / (GS_SAMPLE_NS / 1e9));
    rates->memory = percent((now->sums.dram_s - before->sums.dram_s) / (GS_SAMPLE_NS / 1e9));
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *utilisation, unsigned *period_us)
{
    ENTER(device);
    *utilisation = 0;
    *period_us = (unsigned)(GS_SAMPLE_NS / 1000);
    LEAVE(device);
}

static unsigned long long memory_used(const struct gs_gpu *gpu)
{
    unsigned long long used = 600ull << 20;
    for (int row = 0; row < GS_PROCESSES; row++)
        used += gpu->processes[row].claimed ? gpu->processes[row].memory_bytes : 0;
    used += gpu->set.foreign_pid > 0 ? (unsigned long long)gpu->set.foreign_memory_bytes : 0;
    return used < GS_MEMORY_BYTES ? used : GS_MEMORY_BYTES;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(device);
    *memory = (nvmlMemory_t){GS_MEMORY_BYTES, GS_MEMORY_BYTES - memory_used(device), memory_used(device)};
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER(device);
    memory->total = GS_MEMORY_BYTES;
    memory->reserved = 600ull << 20;
    memory->used = memory_used(device);
    memory->free = memory->total - memory->used;
    LEAVE(device);
}

/* ---- errors ---- */

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER(device);
    *current = *pending = 1;
    LEAVE(device);
}

static unsigned long long ecc(const struct gs_gpu *gpu, unsigned kind)
{
    return (unsigned long long)(kind ? gpu->set.ecc_uncorrected : gpu->sums.ecc_corrected);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned kind, unsigned counter, unsigned long long *count)
{
    if (kind > 1 || counter > 1)
        return INVALID_ARGUMENT;
    ENTER(device);
    *count = ecc(device, kind);
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                           unsigned *failed)
{
    ENTER(device);
    *corrected = 0;
    *uncorrected = (unsigned)device->set.rows_remapped;
    *pending = device->set.remap_pending > 0;
    *failed = device->set.remap_failed > 0;
    LEAVE(device);
}

GETTER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, 0)
