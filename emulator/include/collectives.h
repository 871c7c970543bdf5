// Barriers, shuffles and votes, under CUDA's own names; named barriers under ours.
#pragma once

#include "language.h"

inline void __syncthreads(KERNWRIGHT_CALLER) {
  kernwright::emulator::block_barrier(kernwright::emulator::Reduction::none, false, KERNWRIGHT_HERE);
}
inline int __syncthreads_count(int predicate, KERNWRIGHT_CALLER) {
  return kernwright::emulator::block_barrier(kernwright::emulator::Reduction::count, predicate != 0, KERNWRIGHT_HERE);
}
inline int __syncthreads_and(int predicate, KERNWRIGHT_CALLER) {
  return kernwright::emulator::block_barrier(kernwright::emulator::Reduction::all, predicate != 0, KERNWRIGHT_HERE);
}
inline int __syncthreads_or(int predicate, KERNWRIGHT_CALLER) {
  return kernwright::emulator::block_barrier(kernwright::emulator::Reduction::any, predicate != 0, KERNWRIGHT_HERE);
}

namespace kernwright::emulator {

// barrier.sync id, threads: `threads` counts every thread that arrives, waiting or not.
inline void barrier_sync(unsigned id, unsigned threads, KERNWRIGHT_CALLER) {
  named_barrier(id, threads, true, KERNWRIGHT_HERE);
}
// barrier.arrive id, threads
inline void barrier_arrive(unsigned id, unsigned threads, KERNWRIGHT_CALLER) {
  named_barrier(id, threads, false, KERNWRIGHT_HERE);
}

template <typename T>
inline T exchange(Exchange kind, unsigned mask, T value, int argument, int width, Place place) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(kind, mask, bits, argument, width, place);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline unsigned reduce(Exchange kind, unsigned mask, unsigned value, Place place) {
  return static_cast<unsigned>(warp_exchange(kind, mask, value, 0, 32, place));
}

}  // namespace kernwright::emulator

#define KERNWRIGHT_EXCHANGE(kind, value, argument, width) \
  ::kernwright::emulator::exchange(::kernwright::emulator::Exchange::kind, mask, value, argument, width, KERNWRIGHT_HERE)

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, KERNWRIGHT_CALLER) {
  return KERNWRIGHT_EXCHANGE(shuffle, value, lane, width);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, KERNWRIGHT_CALLER) {
  return KERNWRIGHT_EXCHANGE(shuffle_up, value, static_cast<int>(delta), width);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, KERNWRIGHT_CALLER) {
  return KERNWRIGHT_EXCHANGE(shuffle_down, value, static_cast<int>(delta), width);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize, KERNWRIGHT_CALLER) {
  return KERNWRIGHT_EXCHANGE(shuffle_xor, value, lanes, width);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, KERNWRIGHT_CALLER) {
  kernwright::emulator::warp_exchange(kernwright::emulator::Exchange::sync, mask, 0, 0, 32, KERNWRIGHT_HERE);
}
inline unsigned __activemask() { return kernwright::emulator::active_mask(); }
inline unsigned __ballot_sync(unsigned mask, int predicate, KERNWRIGHT_CALLER) {
  return kernwright::emulator::reduce(kernwright::emulator::Exchange::ballot, mask, predicate != 0, KERNWRIGHT_HERE);
}
inline int __any_sync(unsigned mask, int predicate, KERNWRIGHT_CALLER) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, KERNWRIGHT_CALLER) {
  return __ballot_sync(mask, predicate == 0, file, line) == 0;
}
template <typename T>
inline unsigned __match_any_sync(unsigned mask, T value, KERNWRIGHT_CALLER) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(KERNWRIGHT_EXCHANGE(match_any, bits, 0, 32));
}
template <typename T>
inline unsigned __match_all_sync(unsigned mask, T value, int* all, KERNWRIGHT_CALLER) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const unsigned lanes = static_cast<unsigned>(KERNWRIGHT_EXCHANGE(match_all, bits, 0, 32));
  *all = lanes != 0;
  return lanes;
}

#define KERNWRIGHT_REDUCE(name, type, kind)                                                          \
  inline type name(unsigned mask, type value, KERNWRIGHT_CALLER) {                                   \
    return static_cast<type>(::kernwright::emulator::reduce(::kernwright::emulator::Exchange::kind, mask, \
                                                            static_cast<unsigned>(value), KERNWRIGHT_HERE)); \
  }
KERNWRIGHT_REDUCE(__reduce_add_sync, unsigned, add)
KERNWRIGHT_REDUCE(__reduce_add_sync, int, add)
KERNWRIGHT_REDUCE(__reduce_min_sync, unsigned, min_unsigned)
KERNWRIGHT_REDUCE(__reduce_min_sync, int, min_signed)
KERNWRIGHT_REDUCE(__reduce_max_sync, unsigned, max_unsigned)
KERNWRIGHT_REDUCE(__reduce_max_sync, int, max_signed)
KERNWRIGHT_REDUCE(__reduce_and_sync, unsigned, bit_and)
KERNWRIGHT_REDUCE(__reduce_or_sync, unsigned, bit_or)
KERNWRIGHT_REDUCE(__reduce_xor_sync, unsigned, bit_xor)
#undef KERNWRIGHT_REDUCE
#undef KERNWRIGHT_EXCHANGE
