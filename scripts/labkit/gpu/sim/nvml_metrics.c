/* NVML continued: GPM, field values. */
#include "nvml.h"

#include <stdlib.h>

/* ---- GPM: sums at two instants, metrics of the interval between ---- */

struct gpm_sample {
    int64_t time_ns;
    struct gs_gpu_sums sums;
};
typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        const char *shortName, *longName, *unit;
    } info;
} nvmlGpmMetric_t;
typedef struct {
    unsigned version, numMetrics;
    struct gpm_sample *sample1, *sample2;
    nvmlGpmMetric_t metrics[]; /* as many as the caller's version of the header has */
} nvmlGpmMetricsGet_t;

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, unsigned *support)
{
    ENTER(device);
    support[1] = device->set.gpm_supported > 0;
    LEAVE(device);
}

API nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : MEMORY;
}

API nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample)
{
    free(sample);
    return SUCCESS;
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample)
{
    if (!sample)
        return INVALID_ARGUMENT;
    ENTER(device);
    sample->time_ns = device->advanced_ns;
    sample->sums = device->sums;
    LEAVE_AS(device, device->set.gpm_supported > 0 ? SUCCESS : NOT_SUPPORTED);
}

static double share(double more, double less, double seconds)
{
    double value = (more - less) / seconds * 100;
    return value < 0 ? 0 : value > 100 ? 100 : value;
}

static double mebibytes(double more, double less, double seconds)
{
    return (more - less) / seconds / (1 << 20);
}

static void measure(nvmlGpmMetric_t *metric, const struct gs_gpu_sums *from, const struct gs_gpu_sums *to, double seconds)
{
    const char *name = NULL, *unit = "%";
    metric->nvmlReturn = SUCCESS;
#define SHARE(id, text, field) case id: metric->value = share(to->field, from->field, seconds), name = text; break;
#define BYTES(id, text, field) case id: metric->value = mebibytes(to->field, from->field, seconds), name = text, unit = "MiB/s"; break;
    switch (metric->metricId) {
        SHARE(1, "Graphics Util", kernel_s)
        SHARE(2, "SM Util", sm_s)
        SHARE(3, "SM Occupancy", occupancy_s)
        SHARE(5, "Any Tensor Util", tensor_s)
        SHARE(7, "HMMA Tensor Util", tensor_s)
        SHARE(10, "DRAM BW Util", dram_s)
        BYTES(20, "PCIe TX", pcie_tx_bytes)
        BYTES(21, "PCIe RX", pcie_rx_bytes)
        BYTES(60, "NVLink RX", nvlink_rx_bytes)
        BYTES(61, "NVLink TX", nvlink_tx_bytes)
    default:
        metric->nvmlReturn = NOT_SUPPORTED;
    }
#undef SHARE
#undef BYTES
    if (name) {
        metric->info.shortName = metric->info.longName = name;
        metric->info.unit = unit;
    }
}

API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request)
{
    if (!request || !request->sample1 || !request->sample2)
        return INVALID_ARGUMENT;
    double seconds = (request->sample2->time_ns - request->sample1->time_ns) / 1e9;
    if (seconds <= 0)
        return INVALID_ARGUMENT;
    for (unsigned index = 0; index < request->numMetrics; index++)
        measure(&request->metrics[index], &request->sample1->sums, &request->sample2->sums, seconds);
    return SUCCESS;
}

/* ---- field values ---- */

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

/* An NVLink counter of the link in `scope`, or of all; traffic is spread over the active links. */
static double of_link(const struct gs_gpu *gpu, double total, unsigned scope)
{
    int active = __builtin_popcountll((uint64_t)gpu->set.nvlink_active & ((1ull << GS_LINKS) - 1));
    return scope >= GS_LINKS ? total : nvml_link_active(gpu, scope) && active ? total / active : 0;
}

static unsigned long long errors_of_all(const struct gs_gpu *gpu, unsigned counter)
{
    unsigned long long sum = 0;
    for (unsigned link = 0; link < GS_LINKS; link++)
        sum += nvml_link_errors(gpu, link, counter);
    return sum;
}

static void fill(const struct gs_gpu *gpu, nvmlFieldValue_t *field)
{
    unsigned scope = field->scopeId, id = field->fieldId;
    field->nvmlReturn = SUCCESS;
    field->timestamp = gpu->advanced_ns / 1000;
    field->latencyUsec = 1;
    field->value.ull = 0;
#define UINT(number) (field->valueType = TYPE_UINT, field->value.ui = (unsigned)(number))
#define WIDE(number) (field->valueType = TYPE_ULONGLONG, field->value.ull = (unsigned long long)(number))
    if (id == 1)
        UINT(1);
    else if (id == 3 || id == 5 || id == 11 || id == 22)
        WIDE(gpu->sums.ecc_corrected);
    else if (id == 4 || id == 6 || id == 12 || id == 23)
        WIDE(gpu->set.ecc_uncorrected);
    else if (id == 38 || id == 45 || id == 52 || id == 59) /* CRC flit, CRC data, replay, recovery: totals */
        WIDE(errors_of_all(gpu, id == 38 ? 2 : id == 45 ? 3 : id == 52 ? 0 : 1));
    else if ((id >= 32 && id < 38) || (id >= 39 && id < 45) || (id >= 46 && id < 52) || (id >= 53 && id < 59))
        WIDE(nvml_link_errors(gpu, (id - 32) % 7, id < 38 ? 2 : id < 45 ? 3 : id < 52 ? 0 : 1));
    else if (id == 74)
        WIDE(gpu->sums.power_limited_s * 1e9);
    else if (id == 75)
        WIDE(gpu->sums.thermal_limited_s * 1e9);
    else if (id == 82)
        UINT(nvml_memory_temperature(gpu));
    else if (id == 83)
        WIDE(gpu->sums.energy_j * 1e3);
    else if ((id >= 84 && id <= 90) || id == 164)
        UINT(26562);
    else if (id == 91)
        UINT(GS_LINKS);
    else if (id == 94)
        UINT(gpu->sums.pcie_replays);
    else if (id == 138 || id == 140)
        WIDE(of_link(gpu, gpu->sums.nvlink_tx_bytes, scope) / 1024);
    else if (id == 139 || id == 141)
        WIDE(of_link(gpu, gpu->sums.nvlink_rx_bytes, scope) / 1024);
    else if (id == 142)
        UINT(0);
    else if (id == 143)
        UINT(gpu->set.rows_remapped);
    else if (id == 144)
        UINT(gpu->set.remap_pending > 0);
    else if (id == 145)
        UINT(gpu->set.remap_failed > 0);
    else if (id >= 161 && id <= 163 && scope < GS_LINKS) /* replay, recovery, CRC of one link */
        WIDE(id == 163 ? nvml_link_errors(gpu, scope, 2) + nvml_link_errors(gpu, scope, 3) : nvml_link_errors(gpu, scope, id - 161));
    else if (id == 29)
        WIDE(0);
    else if (id == 30)
        WIDE(gpu->set.retired_pages);
    else if (id == 31)
        UINT(0);
    else if (id == 165 && scope < GS_LINKS)
        UINT(nvml_link_active(gpu, scope));
    else if (id == 166)
        UINT(6);
    else if (id == 173)
        UINT(gpu->sums.pcie_replays);
    else if (id == 179 || id == 180)
        UINT(0);
    else if (id == 185)
        UINT(nvml_power_w(gpu, 6) * 1e3);
    else if (id == 186)
        UINT(nvml_power_now_w(gpu) * 1e3);
    else if (id == 187)
        UINT(200000);
    else if (id == 188 || id == 189)
        UINT(GS_POWER_CAP_W * 1e3);
    else if (id == 190 || id == 192)
        UINT(gpu->set.power_cap_w * 1e3);
    else if (id == 197)
        WIDE(gpu->sums.pcie_tx_bytes);
    else if (id == 198)
        WIDE(gpu->sums.pcie_rx_bytes);
    else if (id == 202)
        WIDE(of_link(gpu, gpu->sums.nvlink_tx_bytes, scope));
    else if (id == 204)
        WIDE(of_link(gpu, gpu->sums.nvlink_rx_bytes, scope));
    else if (id == 230)
        UINT(gpu->set.recovery_action);
    else
        field->nvmlReturn = NOT_SUPPORTED;
#undef UINT
#undef WIDE
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    if (count < 0 || (count && !fields))
        return INVALID_ARGUMENT;
    ENTER(device);
    for (int index = 0; index < count; index++)
        fill(device, &fields[index]);
    LEAVE(device);
}
