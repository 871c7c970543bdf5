// Intrinsics whose result is plain IEEE arithmetic or bit handling. Approximate ones are absent on purpose:
// nothing approximate may enter a result.
#pragma once

#include "language.h"

// The C library has functions of these names, which aren't CUDA's approximations.
#pragma GCC poison __expf __exp10f __logf __log2f __log10f __sinf __cosf __tanf __sincosf __powf

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

namespace kernwright::emulator {
template <typename To, typename From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}
}  // namespace kernwright::emulator

inline float __int_as_float(int a) { return kernwright::emulator::bits_as<float>(a); }
inline float __uint_as_float(unsigned a) { return kernwright::emulator::bits_as<float>(a); }
inline int __float_as_int(float a) { return kernwright::emulator::bits_as<int>(a); }
inline unsigned __float_as_uint(float a) { return kernwright::emulator::bits_as<unsigned>(a); }
inline double __longlong_as_double(long long a) { return kernwright::emulator::bits_as<double>(a); }
inline long long __double_as_longlong(double a) { return kernwright::emulator::bits_as<long long>(a); }

inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)); }
inline int __clzll(long long a) { return a == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(a)); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = a | (static_cast<std::uint64_t>(b) << 32);
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = (selector >> (4 * i)) & 0xf;
    unsigned byte = (bytes >> (8 * (choice & 7))) & 0xff;
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

// Cache hints change no value.
template <typename T> inline T __ldg(const T* source) { return *source; }
template <typename T> inline T __ldcg(const T* source) { return *source; }
template <typename T> inline T __ldca(const T* source) { return *source; }
template <typename T> inline T __ldcs(const T* source) { return *source; }
template <typename T> inline T __ldlu(const T* source) { return *source; }
template <typename T> inline void __stcg(T* target, T value) { *target = value; }
template <typename T> inline void __stcs(T* target, T value) { *target = value; }
template <typename T> inline void __stwt(T* target, T value) { *target = value; }

#define KERNWRIGHT_MIN_MAX(type)                                \
  inline type min(type a, type b) { return b < a ? b : a; }     \
  inline type max(type a, type b) { return a < b ? b : a; }
KERNWRIGHT_MIN_MAX(int)
KERNWRIGHT_MIN_MAX(unsigned)
KERNWRIGHT_MIN_MAX(long)
KERNWRIGHT_MIN_MAX(unsigned long)
KERNWRIGHT_MIN_MAX(long long)
KERNWRIGHT_MIN_MAX(unsigned long long)
#undef KERNWRIGHT_MIN_MAX
