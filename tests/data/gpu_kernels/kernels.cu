#include <cstdio>
namespace work { template <typename T, int N> struct Add { __device__ T operator()(T a) const { return a + N; } };
template <typename F, typename T> __global__ void apply(F f, T *p) { p[threadIdx.x] = f(p[threadIdx.x]); } }
namespace { __global__ void hidden(int *p) { *p = 1; } }
__device__ int counter;
static __global__ void fixed(int *p) { *p = counter; }
extern "C" __global__ void plain(double *p) { *p *= 2; }
__global__ void scale(float *p, float by) { p[threadIdx.x] *= by; }
extern "C" void launch(float *p) {
  work::apply<<<1, 32>>>(work::Add<float, 3>(), p);
  work::apply<<<1, 32>>>(work::Add<double, 5>(), (double *)p);
  hidden<<<1, 1>>>((int *)p); fixed<<<1,1>>>((int*)p); plain<<<1, 1>>>((double *)p); scale<<<1, 32>>>(p, 2.f);
}
