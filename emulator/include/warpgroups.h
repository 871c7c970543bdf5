// A warpgroup's matrix product (PTX wgmma.mma_async.sync.aligned.m64nNk16, operands in shared memory, 128-byte swizzle).
//
// Hardware reads the operands and writes the sums at any time between the issue and the wait. So the sums are NaN until
// then, and the operands must be the same at the wait as they were at the issue. Each sum takes its products in increasing
// k, by FMA, which are not the hardware's bits.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

#include "tensor_cores.h"

namespace kernwright::emulator {

// Element `k` of a row in a tile whose rows are 128 bytes; the tile may begin at any of its steps of 16 elements.
template <typename Element>
inline float swizzled_element(const unsigned char* tile, unsigned row, unsigned k) {
  auto address = reinterpret_cast<std::uintptr_t>(tile) + row * 128 + k * sizeof(Element);
  address ^= (address >> 7 & 7) << 4;
  Element element;
  std::memcpy(&element, reinterpret_cast<const void*>(address), sizeof element);
  return static_cast<float>(element);
}

// Rows g and g + 8 of the warp's 16, columns 2p and 2p + 1 of every 8, for lane 4 * g + p.
template <typename Element>
inline void add_products(std::vector<float>& sums, const unsigned char* a, const unsigned char* b) {
  const unsigned thread = registers.thread.x % 128, row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
  float rows[2][16];
  for (unsigned half = 0; half < 2; ++half)
    for (unsigned k = 0; k < 16; ++k) rows[half][k] = swizzled_element<Element>(a, row + half * 8, k);
  for (std::size_t i = 0; i < sums.size(); i += 4)
    for (unsigned e = 0; e < 2; ++e)
      for (unsigned k = 0; k < 16; ++k) {
        const float weight = swizzled_element<Element>(b, static_cast<unsigned>(i) * 2 + column + e, k);
        for (unsigned half = 0; half < 2; ++half) {
          float& sum = sums[i + half * 2 + e];
          sum = std::fmaf(rows[half][k], weight, sum);
        }
      }
}

// The products that one thread has issued and not yet waited for.
class Products {
 public:
  // 64 rows of `a` by `SUMS` x 2 rows of `b`, 16 elements of each, added to this thread's part of the sums.
  template <typename Element, int SUMS>
  void multiply_add(float (&sums)[SUMS], const void* a, const void* b, KERNWRIGHT_CALLER) {
    exchange(Exchange::sync, 0xffffffffu, 0u, 0, 32, KERNWRIGHT_HERE);
    if (sums_ == nullptr) {
      sums_ = sums;
      values_.assign(sums, sums + SUMS);
      std::fill(sums, sums + SUMS, std::numeric_limits<float>::quiet_NaN());
    } else if (sums_ != sums) {
      trap("a warpgroup begins products with other sums before the ones under way have ended", KERNWRIGHT_HERE);
    }
    Product product{static_cast<const unsigned char*>(a), static_cast<const unsigned char*>(b), &add_products<Element>,
                    values_, {}};
    product.add(values_, product.a, product.b);
    product.after = values_;
    open_.push_back(std::move(product));
  }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  // At most `groups_left` groups stay under way.
  void wait(unsigned groups_left, KERNWRIGHT_CALLER) {
    for (; groups_.size() > groups_left; groups_.pop_front())
      for (Product& product : groups_.front()) {
        product.add(product.before, product.a, product.b);
        if (std::memcmp(product.before.data(), product.after.data(), product.after.size() * sizeof(float)) != 0)
          trap("an operand of a warpgroup's product changed while the product was under way", KERNWRIGHT_HERE);
      }
    if (sums_ == nullptr || !groups_.empty() || !open_.empty()) return;
    std::copy(values_.begin(), values_.end(), sums_);
    sums_ = nullptr;
  }

 private:
  struct Product {
    const unsigned char *a, *b;
    void (*add)(std::vector<float>&, const unsigned char*, const unsigned char*);
    std::vector<float> before, after;
  };
  float* sums_ = nullptr;  // the kernel's, while products are under way
  std::vector<float> values_;
  std::vector<Product> open_;
  std::deque<std::vector<Product>> groups_;
};

}  // namespace kernwright::emulator
