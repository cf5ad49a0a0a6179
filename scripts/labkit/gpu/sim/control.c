/* Settings and sums by name, and errors on request: what the lab changes and reads while a job runs. */
#define _GNU_SOURCE
#include "gpusim.h"

#include <string.h>


#define GS_NAME(name, ...) #name,
#define GS_COUNT(names) (int)(sizeof names / sizeof *names)
static const char *const gpu_settings[] = {GS_GPU_SETTINGS(GS_NAME)};
static const char *const nic_settings[] = {GS_NIC_SETTINGS(GS_NAME)};
static const char *const gpu_sums[] = {GS_GPU_SUMS(GS_NAME)};
static const char *const nic_sums[] = {GS_NIC_SUMS(GS_NAME)};

static double *find(const char *const *names, int count, void *values, const char *name)
{
    for (int index = 0; index < count; index++)
        if (!strcmp(names[index], name))
            return (double *)values + index;
    return NULL;
}

static double *setting(struct gs_gpu *gpu, int nic, const char *name)
{
    return nic ? find(nic_settings, GS_COUNT(nic_settings), &gpu->nic_set, name)
               : find(gpu_settings, GS_COUNT(gpu_settings), &gpu->set, name);
}

int gs_set(struct gs_state *state, int index, int nic, const char *name, double value)
{
    if (index < 0 || index >= (int)state->gpus)
        return -1;
    struct gs_gpu *gpu = &state->gpu[index];
    gs_lock(&gpu->lock);
    gs_advance(gpu, gs_now());
    double *at = setting(gpu, nic, name);
    if (at)
        *at = value;
    gs_unlock(&gpu->lock);
    gs_wake(&state->moving);
    return at ? 0 : -1;
}

/* A setting, or a sum up to now; NaN where there is none of that name. */
double gs_get(struct gs_state *state, int index, int nic, const char *name)
{
    if (index < 0 || index >= (int)state->gpus)
        return __builtin_nan("");
    struct gs_gpu *gpu = &state->gpu[index];
    gs_lock(&gpu->lock);
    gs_advance(gpu, gs_now());
    double *at = setting(gpu, nic, name);
    if (!at)
        at = nic ? find(nic_sums, GS_COUNT(nic_sums), &gpu->nic_sums, name) : find(gpu_sums, GS_COUNT(gpu_sums), &gpu->sums, name);
    double value = at ? *at : __builtin_nan("");
    gs_unlock(&gpu->lock);
    return value;
}

int gs_xid(struct gs_state *state, int index, int number)
{
    if (index < 0 || index >= (int)state->gpus)
        return -1;
    struct gs_gpu *gpu = &state->gpu[index];
    gs_lock(&gpu->lock);
    gpu->xids[gpu->xid_count % GS_XIDS].number = number;
    gpu->xids[gpu->xid_count % GS_XIDS].time_ns = gs_now();
    gpu->xid_count++;
    gs_unlock(&gpu->lock);
    return 0;
}
