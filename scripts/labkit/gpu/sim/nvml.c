/* libnvidia-ml.so.1: what a monitor asks of NVML, answered from the shared state. Here: the library, handles, identity. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>

static int initialised;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

/* Buses on which an eight-GPU machine has its GPUs; sysfs.py has the same table. */
static const unsigned buses[GS_GPUS] = {0x18, 0x2a, 0x3a, 0x5b, 0x9a, 0xab, 0xba, 0xdb,
                                        0x1c, 0x2e, 0x3e, 0x5f, 0x9e, 0xaf, 0xbe, 0xdf};

/* ---- library ---- */

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!gs_state())
        return DRIVER_NOT_LOADED;
    __atomic_add_fetch(&initialised, 1, __ATOMIC_ACQ_REL);
    return SUCCESS;
}

API nvmlReturn_t nvmlShutdown(void)
{
    if (!initialised)
        return UNINITIALIZED;
    __atomic_sub_fetch(&initialised, 1, __ATOMIC_ACQ_REL);
    return SUCCESS;
}

API const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized", "Not Found",
        "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "In use by another client", "Insufficient Memory", "No data",
    };
    return result < sizeof texts / sizeof *texts ? texts[result] : "Unknown Error";
}

static nvmlReturn_t text(char *to, unsigned length, const char *from)
{
    if (!to)
        return INVALID_ARGUMENT;
    return snprintf(to, length, "%s", from) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return initialised ? text(version, length, "550.90.07") : UNINITIALIZED;
}

/* ---- handles ---- */

int nvml_index(nvmlDevice_t device)
{
    return (int)(device - gs_state()->gpu);
}

nvmlReturn_t nvml_enter(nvmlDevice_t device)
{
    struct gs_state *state = gs_state();
    if (!initialised || !state)
        return UNINITIALIZED;
    if (device < state->gpu || device >= state->gpu + state->gpus)
        return INVALID_ARGUMENT;
    if (device->set.delay_s > 0) /* a driver that answers late */
        gs_sleep_until(gs_now() + (int64_t)(device->set.delay_s * 1e9));
    if (device->set.lost > 0)
        return GPU_IS_LOST;
    if (device->set.nvml_error > 0)
        return (nvmlReturn_t)device->set.nvml_error;
    gs_lock(&device->lock);
    gs_advance(device, gs_now());
    return SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!initialised)
        return UNINITIALIZED;
    *count = gs_state()->gpus;
    return SUCCESS;
}

/* A handle; that of a lost GPU is given out too, as the driver does until it is reloaded. */
API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (!initialised)
        return UNINITIALIZED;
    if (index >= gs_state()->gpus || !device)
        return INVALID_ARGUMENT;
    *device = &gs_state()->gpu[index];
    return (*device)->set.lost > 0 ? GPU_IS_LOST : SUCCESS;
}

/* ---- identity ---- */

#define TEXT_GETTER(name, value)                                                                                              \
    API nvmlReturn_t name(nvmlDevice_t device, char *result, unsigned length)                                                 \
    {                                                                                                                         \
        ENTER(device);                                                                                                        \
        LEAVE_AS(device, text(result, length, value));                                                                        \
    }

TEXT_GETTER(nvmlDeviceGetName, "NVIDIA H100 80GB HBM3")
TEXT_GETTER(nvmlDeviceGetVbiosVersion, "96.00.89.00.01")
GETTER(nvmlDeviceGetIndex, unsigned, nvml_index(device))

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    char name[80];
    ENTER(device);
    snprintf(name, sizeof name, "GPU-5e1f0000-c0de-4a00-8000-0000000000%02x", nvml_index(device));
    LEAVE_AS(device, text(uuid, length, name));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = buses[nvml_index(device)];
    pci->pciDeviceId = 0x233010de;
    pci->pciSubSystemId = 0x16c110de;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", pci->bus);
    LEAVE(device);
}

