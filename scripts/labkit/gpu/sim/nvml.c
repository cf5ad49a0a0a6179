/* libnvidia-ml.so.1: what a monitor asks of NVML, answered from the shared state. Here: the library, handles, identity, topology. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

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

API nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
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

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return initialised ? text(version, length, "12.550.90.07") : UNINITIALIZED;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 12040;
    return initialised ? SUCCESS : UNINITIALIZED;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NOT_FOUND;
    if (!fgets(line, sizeof line, file))
        line[0] = 0;
    fclose(file);
    line[strcspn(line, "\n")] = 0;
    return text(name, length, line);
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

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
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

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static void uuid_of(int index, char *to, unsigned length)
{
    snprintf(to, length, "GPU-5e1f0000-c0de-4a00-8000-0000000000%02x", index);
}

static void bus_of(int index, char *to, unsigned length)
{
    snprintf(to, length, "00000000:%02X:00.0", buses[index]);
}

static nvmlReturn_t handle_by(const char *wanted, void (*name_of)(int, char *, unsigned), nvmlDevice_t *device)
{
    char name[80];
    if (!initialised)
        return UNINITIALIZED;
    if (!wanted || !device)
        return INVALID_ARGUMENT;
    for (int index = 0; index < (int)gs_state()->gpus; index++) {
        name_of(index, name, sizeof name);
        if (!strcasecmp(wanted, name) || !strcasecmp(wanted, name + 4)) /* bus ids with a domain of four digits too */
            return nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
    }
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return handle_by(uuid, uuid_of, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    return handle_by(bus, bus_of, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device)
{
    return handle_by(bus, bus_of, device);
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
GETTER(nvmlDeviceGetMinorNumber, unsigned, nvml_index(device))
GETTER(nvmlDeviceGetBrand, unsigned, 14)
GETTER(nvmlDeviceGetArchitecture, unsigned, 9)
GETTER(nvmlDeviceGetPersistenceMode, unsigned, 1)
GETTER(nvmlDeviceGetComputeMode, unsigned, 0)
GETTER(nvmlDeviceGetNumGpuCores, unsigned, 16896)

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    char name[80];
    ENTER(device);
    uuid_of(nvml_index(device), name, sizeof name);
    LEAVE_AS(device, text(uuid, length, name));
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    char name[32];
    ENTER(device);
    snprintf(name, sizeof name, "16541230%05d", nvml_index(device));
    LEAVE_AS(device, text(serial, length, name));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = buses[nvml_index(device)];
    pci->pciDeviceId = 0x233010de;
    pci->pciSubSystemId = 0x16c110de;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", pci->bus);
    bus_of(nvml_index(device), pci->busId, sizeof pci->busId);
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(device);
    *major = 9;
    *minor = 0;
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER(device);
    *current = *pending = 0;
    LEAVE(device);
}

/* ---- topology ---- */

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    ENTER(one);
    int near = nvml_index(one), far = nvml_index(other);
    *level = near == far ? 0 : near / (int)gs_state()->per_host == far / (int)gs_state()->per_host ? 40 : 50;
    LEAVE(one);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned kind, unsigned *status)
{
    (void)kind;
    ENTER(one);
    *status = nvml_index(one) / (int)gs_state()->per_host == nvml_index(other) / (int)gs_state()->per_host ? 0 : 5;
    LEAVE(one);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
    ENTER(device);
    memset(set, 0, words * sizeof *set);
    if (words)
        set[0] = 0x3;
    LEAVE(device);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope)
{
    (void)scope;
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope)
{
    (void)scope;
    ENTER(device);
    memset(set, 0, words * sizeof *set);
    if (words)
        set[0] = 1;
    LEAVE(device);
}

GETTER(nvmlDeviceGetNumaNodeId, unsigned, 0)

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *devices)
{
    ENTER(device);
    int own = nvml_index(device), per_host = (int)gs_state()->per_host;
    unsigned room = devices ? *count : 0, found = 0;
    for (int index = 0; level >= 40 && index < (int)gs_state()->gpus; index++) {
        if (index == own || (level == 40) != (index / per_host == own / per_host))
            continue;
        if (found < room)
            devices[found] = &gs_state()->gpu[index];
        found++;
    }
    *count = devices && found > room ? room : found;
    LEAVE(device);
}

/* What such a board has not. */
#define NEVER(name)                                                                                                           \
    API nvmlReturn_t name(nvmlDevice_t device)                                                                                \
    {                                                                                                                         \
        ENTER(device);                                                                                                        \
        LEAVE_AS(device, NOT_SUPPORTED);                                                                                      \
    }

NEVER(nvmlDeviceGetFanSpeed)
NEVER(nvmlDeviceGetFanSpeed_v2)
NEVER(nvmlDeviceGetDisplayMode)
NEVER(nvmlDeviceGetDisplayActive)
NEVER(nvmlDeviceGetAccountingMode)
NEVER(nvmlDeviceGetGpuFabricInfo)
NEVER(nvmlDeviceGetGpuFabricInfoV)
NEVER(nvmlDeviceGetAutoBoostedClocksEnabled)
NEVER(nvmlDeviceGetRowRemapperHistogram)
NEVER(nvmlDeviceGetMPSComputeRunningProcesses_v2)
