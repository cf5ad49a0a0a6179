/* NVML continued: PCI Express and NVLink. */
#define _GNU_SOURCE
#include "nvml.h"

/* ---- PCI Express ---- */

GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, device->set.pcie_gen)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, device->set.pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, 5)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, 5)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, device->sums.pcie_replays)

API nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *mbps)
{
    static const unsigned speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    ENTER(device);
    int generation = (int)device->set.pcie_gen;
    *mbps = generation >= 1 && generation <= 6 ? speeds[generation] : 0;
    LEAVE(device);
}

/* KB/s over the last sample period; the real one waits 20 ms for it. */
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kbps)
{
    if (counter > 1)
        return INVALID_ARGUMENT;
    ENTER(device);
    const struct gs_gpu_sums *now = &last_sample(device, 0)->sums, *before = &last_sample(device, 1)->sums;
    double bytes = counter ? now->pcie_rx_bytes - before->pcie_rx_bytes : now->pcie_tx_bytes - before->pcie_tx_bytes;
    *kbps = (unsigned)(bytes / 1024 / (GS_SAMPLE_NS / 1e9));
    LEAVE(device);
}

/* ---- NVLink ---- */

int nvml_link_active(const struct gs_gpu *gpu, unsigned link)
{
    return link < GS_LINKS && ((uint64_t)gpu->set.nvlink_active >> link & 1);
}

/* All errors fall on the lowest active link; replays, recoveries and CRC errors share them. */
unsigned long long nvml_link_errors(const struct gs_gpu *gpu, unsigned link, unsigned counter)
{
    static const double shares[] = {0.3, 0, 0.6, 0.1, 0};
    int lowest = __builtin_ffsll((long long)gpu->set.nvlink_active) - 1;
    return counter < 5 && (int)link == (lowest < 0 ? 0 : lowest) ? (unsigned long long)(gpu->sums.nvlink_errors * shares[counter]) : 0;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    if (link >= GS_LINKS)
        return INVALID_ARGUMENT;
    ENTER(device);
    *active = (unsigned)nvml_link_active(device, link);
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    if (link >= GS_LINKS)
        return INVALID_ARGUMENT;
    ENTER(device);
    *version = 6;
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter, unsigned long long *count)
{
    if (link >= GS_LINKS || counter > 4)
        return INVALID_ARGUMENT;
    ENTER(device);
    *count = nvml_link_errors(device, link, counter);
    LEAVE_AS(device, counter < 4 ? SUCCESS : NOT_SUPPORTED);
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *result)
{
    if (link >= GS_LINKS || capability > 5)
        return INVALID_ARGUMENT;
    ENTER(device);
    *result = capability != 4;
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *kind)
{
    if (link >= GS_LINKS)
        return INVALID_ARGUMENT;
    ENTER(device);
    *kind = 2; /* a switch */
    LEAVE(device);
}
