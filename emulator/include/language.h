// CUDA's language on a host compiler: qualifiers, special registers, vector types.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>
#include <vector_types.h>

// Standard headers that use these qualifiers' names as attributes come before the qualifiers are defined.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "interface.h"

// A CTA is an OS thread, so what its threads share is the OS thread's. Block scope makes it static, and
// `extern __shared__` (dynamic shared memory) stays legal.
#undef __shared__
#define __shared__ thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __noinline__
#define __noinline__ __attribute__((noinline))
// Aliasing promises would let the compiler keep loads across barriers that a mutated kernel lacks.
#define __restrict__

#define KERNWRIGHT_HERE \
  ::kernwright::emulator::Place { file, line }
#define KERNWRIGHT_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace kernwright::emulator {
inline const uint3& as_uint3(const Index3& index) { return reinterpret_cast<const uint3&>(index); }
inline dim3 as_dim3(const Index3& index) { return dim3(index.x, index.y, index.z); }
}  // namespace kernwright::emulator

#define threadIdx (::kernwright::emulator::as_uint3(::kernwright::emulator::registers.thread))
#define blockIdx (::kernwright::emulator::as_uint3(::kernwright::emulator::registers.block))
#define blockDim (::kernwright::emulator::as_dim3(::kernwright::emulator::registers.threads))
#define gridDim (::kernwright::emulator::as_dim3(::kernwright::emulator::registers.blocks))
constexpr int warpSize = 32;
