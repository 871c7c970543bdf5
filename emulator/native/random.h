// Numbers that follow from a seed alone (SplitMix64).
#pragma once

#include <cstdint>

namespace kernwright::emulator {

struct Random {
  std::uint64_t state;
  explicit Random(std::uint64_t seed) : state(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  unsigned below(unsigned limit) { return static_cast<unsigned>((next() >> 32) * limit >> 32); }
  bool one_in(unsigned shift) { return (next() >> 40 & ((1u << shift) - 1)) == 0; }
};

// The n-th set bit, counted from 0.
inline unsigned nth_bit(std::uint32_t bits, unsigned n) {
  while (n-- > 0) bits &= bits - 1;
  return static_cast<unsigned>(__builtin_ctz(bits));
}

}  // namespace kernwright::emulator
