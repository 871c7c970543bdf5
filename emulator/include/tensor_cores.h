// A warp's matrix product (PTX mma.sync.aligned.m16n8k16.row.col.f32, FP16 or BF16 in, FP32 accumulated).
//
// Each sum starts at its accumulator and takes the products in increasing k, by FMA. Hardware adds in an order, and with
// a width, that nobody states: these are not its bits.
#pragma once

#include "collectives.h"

namespace kernwright::emulator {

struct WordPair {
  std::uint32_t first, second;
};

template <typename Element>
inline float element_of(std::uint32_t word, int half) {
  Element element;
  const auto bits = static_cast<std::uint16_t>(half == 0 ? word & 0xffffu : word >> 16);
  std::memcpy(&element, &bits, sizeof element);
  return static_cast<float>(element);
}

// Lane 4 * g + p gives A[g] in a0 and a2, A[g + 8] in a1 and a3, B[.][g] in b0 and b1, at k = 2p, 2p + 1 and 8 further, and
// gets D[g][2p], D[g][2p + 1], D[g + 8][2p], D[g + 8][2p + 1].
template <typename Element>
inline void mma_m16n8k16(float (&sum)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                         std::uint32_t b0, std::uint32_t b1, KERNWRIGHT_CALLER) {
  const unsigned lane = registers.thread.x % 32, group = lane / 4, place = lane % 4;
  const auto from = [&](WordPair words, unsigned source) {
    return exchange(Exchange::shuffle, 0xffffffffu, words, static_cast<int>(source), 32, KERNWRIGHT_HERE);
  };
  float rows[2][16], tokens[2][16];
  for (unsigned other = 0; other < 4; ++other) {
    const WordPair low = from({a0, a2}, 4 * group + other), high = from({a1, a3}, 4 * group + other);
    const WordPair even = from({b0, b1}, 8 * place + other), odd = from({b0, b1}, 8 * place + 4 + other);
    for (int half = 0; half < 2; ++half) {
      const unsigned k = 2 * other + static_cast<unsigned>(half);
      rows[0][k] = element_of<Element>(low.first, half), rows[0][k + 8] = element_of<Element>(low.second, half);
      rows[1][k] = element_of<Element>(high.first, half), rows[1][k + 8] = element_of<Element>(high.second, half);
      tokens[0][k] = element_of<Element>(even.first, half), tokens[0][k + 8] = element_of<Element>(even.second, half);
      tokens[1][k] = element_of<Element>(odd.first, half), tokens[1][k + 8] = element_of<Element>(odd.second, half);
    }
  }
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 16; ++k) sum[e] = std::fmaf(rows[e / 2][k], tokens[e % 2][k], sum[e]);
}

}  // namespace kernwright::emulator
