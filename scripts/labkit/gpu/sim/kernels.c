/*
 * libjobkernels.so: the job's own GPU kernels, as NVIDIA's compiler (CUDA 13) leaves them in a library: a fat binary with their names, a
 * host function for each, and an initialiser that registers them with the runtime. What a kernel does is nothing, and takes its time.
 * To add a kernel: a line in KERNELS and its names in the fat binary below.
 */
#include "gpusim.h"

#define SHOWN __attribute__((visibility("default")))
typedef struct {
    unsigned x, y, z;
} dim3;

void **__cudaRegisterFatBinary(const void *descriptor);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *, void *, void *, void *, int *);
int __cudaGetKernel(void **kernel, const void *host);
int __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream);

/* The name in Python, and the kernel's own, mangled. */
#define KERNELS(X)                                                                                                             \
    X(attention, "_ZN5model9attentionILi64EfEEvPd")                                                                            \
    X(mlp, "_ZN5model3mlpI4GeluEEvPd")                                                                                         \
    X(adam, "_ZN5model4adamEPd")

/* The address of `host_NAME` is what a launch names the kernel by. `work`: see cs_work(). */
#define STUB(name, symbol)                                                                                                     \
    SHOWN int host_##name(const void *work, void *stream)                                                                      \
    {                                                                                                                          \
        static void *handle;                                                                                                   \
        if (!handle && __cudaGetKernel(&handle, (const void *)host_##name))                                                    \
            return 1;                                                                                                          \
        void *arguments[] = {(void *)work};                                                                                    \
        return __cudaLaunchKernel(handle, (dim3){1024, 1, 1}, (dim3){256, 1, 1}, arguments, 0, stream);                        \
    }
KERNELS(STUB)

/* A container with one image: a cubin, of which only the file header and the names of sections are there. */
#define NAMES(name, symbol)                                                                                                    \
    ".string \".text." symbol "\"\n.string \".nv.info." symbol "\"\n.string \".nv.constant0." symbol "\"\n"
__asm__(".pushsection .nv_fatbin, \"a\"\n.balign 8\n"
        "fat_binary: .long 0xba55ed50\n.short 1, 16\n.quad fat_end - fat_image\n"
        "fat_image: .short 2, 0x101\n.long 64\n.quad fat_end - cubin\n.long 0, 0, 0, 90, 0, 0\n.quad 0x11, 0, 0\n"
        "cubin: .byte 0x7f, 0x45, 0x4c, 0x46, 2, 1, 1\n.zero 57\n.byte 0\n.string \".shstrtab\"\n.string \".strtab\"\n"
        ".string \".symtab\"\n" KERNELS(NAMES) ".byte 0\n.string \"model\"\n.balign 8\nfat_end:\n.popsection");
extern const char fat_binary[];

static const struct {
    int magic, version;
    const void *data;
    void *file;
} descriptor __attribute__((section(".nvFatBinSegment"), used)) = {0x466243b1, 1, fat_binary, 0};

#define REGISTER(name, symbol)                                                                                                 \
    __cudaRegisterFunction(handle, (const char *)host_##name, (char *)symbol, symbol, -1, 0, 0, 0, 0, 0);

static void register_all(void **handle)
{
    KERNELS(REGISTER)
}

__attribute__((constructor)) static void register_kernels(void)
{
    void (*volatile callback)(void **) = register_all;
    void **handle = __cudaRegisterFatBinary(&descriptor);
    callback(handle);
    __cudaRegisterFatBinaryEnd(handle);
}
