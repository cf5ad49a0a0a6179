"""Short names of GPU kernels: what a kernel computes is in them, and nothing in a name is fatal."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.unwinder.gpu.short import short
from rankscope.unwinder.names.demangle import NAME_CAP

# Of libtorch_cuda 2.9 and 2.14, cuBLAS 12.8, NCCL 2.28, and separately compiled code.
NAMES = {
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_":
        "at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array>",
    "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_13BinaryFunctorIdddZZZNS0_16fmax_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE"
    "_clEvENKUlvE_clEvEUlddE_EESt5arrayIPcLm3EELb1EEEviT0_T1_":
        "at::native::vectorized_elementwise_kernel<8, BinaryFunctor<double, fmax_kernel_cuda lambda(double)>, array, true>",
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_13BinaryFunctorIfffNS0_15binary_internal10MulFunctorIf"
    "EEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_":
        "at::native::elementwise_kernel<128, 2, gpu_kernel_impl_nocast<BinaryFunctor<float, MulFunctor>> lambda(int)>",
    "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nn_align8EEvNT_6ParamsE":
        "cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_nn_align8>",
    "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "__nv_static_22__a323a688_4_t_cu_plain__Z5fixedPi": "fixed",
    "_Z7reduceXIDF16bLin3EEvT_": "reduceX<bfloat16, -3>",
    "ampere_sgemm_128x64_nn": "ampere_sgemm_128x64_nn",
    "triton_poi_fused_add_0": "triton_poi_fused_add_0",
    "_Z": "_Z",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("symbol", NAMES)
def test_kernels_have_the_names_that_people_know_them_by(symbol: str) -> None:
    assert short(symbol) == NAMES[symbol]


@settings(max_examples=600, deadline=None)
@given(
    st.one_of(
        st.text(max_size=300),
        st.text(alphabet="_ZNKSLIEDCXJFTtUlPRMAv0123456789abfz", max_size=300).map("_ZN1aI".__add__),
        st.text(alphabet="_ZNILEi1a", max_size=200).map("_Z1kI".__add__),
    )
)
def test_any_name_is_shortened_and_printable(symbol: str) -> None:
    found = short(symbol)
    assert len(found) <= NAME_CAP
    assert found.isprintable()


@pytest.mark.parametrize("unit", ["I", "Z", "NS_", "1aI", "P", "FvP", "A1_", "UlP", "1aIJ", "ZN1aE", "Dp", "N1aEI"])
def test_names_that_nest_for_ever_end_at_once(unit: str) -> None:
    began_s = time.process_time()
    assert len(short("_ZN1kI" + unit * 200_000)) <= NAME_CAP
    assert time.process_time() - began_s < 1
