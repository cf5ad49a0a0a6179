/* NVML continued: PCI Express and NVLink. */
#define _GNU_SOURCE
#include "nvml.h"

/* ---- PCI Express ---- */

GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, device->set.pcie_gen)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, device->set.pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, device->sums.pcie_replays)

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

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter, unsigned long long *count)
{
    if (link >= GS_LINKS || counter > 4)
        return INVALID_ARGUMENT;
    ENTER(device);
    *count = nvml_link_errors(device, link, counter);
    LEAVE_AS(device, counter < 4 ? SUCCESS : NOT_SUPPORTED);
}
