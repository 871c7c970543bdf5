// Asynchronous copies and the mbarriers that count them (PTX cp.async, cp.async.bulk, mbarrier).
#pragma once

#include "language.h"

namespace kernwright::emulator {

// cp.async: 4, 8 or 16 bytes of this thread; bytes past `valid_bytes` arrive as zeros.
inline void cp_async(void* shared, const void* global, unsigned bytes, unsigned valid_bytes, KERNWRIGHT_CALLER) {
  copy_async(shared, global, bytes, valid_bytes, KERNWRIGHT_HERE);
}
inline void cp_async(void* shared, const void* global, unsigned bytes, KERNWRIGHT_CALLER) {
  copy_async(shared, global, bytes, bytes, KERNWRIGHT_HERE);
}
inline void cp_async_commit_group() { copy_async_commit(); }
// cp.async.wait_group n: at most n of this thread's groups stay under way.
inline void cp_async_wait_group(unsigned groups_left, KERNWRIGHT_CALLER) {
  copy_async_wait(groups_left, KERNWRIGHT_HERE);
}
inline void cp_async_wait_all(KERNWRIGHT_CALLER) {
  copy_async_commit();
  copy_async_wait(0, KERNWRIGHT_HERE);
}

inline void mbarrier_initialise(std::uint64_t* barrier, unsigned arrivals, KERNWRIGHT_CALLER) {
  mbarrier_init(barrier, arrivals, KERNWRIGHT_HERE);
}
inline std::uint64_t mbarrier_arrive_one(std::uint64_t* barrier, KERNWRIGHT_CALLER) {
  return mbarrier_arrive(barrier, 1, 0, KERNWRIGHT_HERE);
}
inline std::uint64_t mbarrier_arrive_expect_tx(std::uint64_t* barrier, unsigned bytes, KERNWRIGHT_CALLER) {
  return mbarrier_arrive(barrier, 1, bytes, KERNWRIGHT_HERE);
}
inline void mbarrier_expect_bytes(std::uint64_t* barrier, unsigned bytes, KERNWRIGHT_CALLER) {
  mbarrier_expect_tx(barrier, bytes, KERNWRIGHT_HERE);
}
// mbarrier.try_wait.parity: whether the phase of that parity is complete; loop around it.
inline bool mbarrier_try_wait_parity(std::uint64_t* barrier, unsigned parity, KERNWRIGHT_CALLER) {
  return mbarrier_try_wait(barrier, parity, KERNWRIGHT_HERE);
}
inline void mbarrier_wait_parity(std::uint64_t* barrier, unsigned parity, KERNWRIGHT_CALLER) {
  mbarrier_wait(barrier, parity, KERNWRIGHT_HERE);
}

// cp.async.bulk: 16-byte aligned, a multiple of 16 bytes; completion is counted by the mbarrier.
inline void cp_async_bulk_to_shared(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier,
                                    KERNWRIGHT_CALLER) {
  bulk_copy_to_shared(shared, global, bytes, barrier, KERNWRIGHT_HERE);
}
inline void cp_async_bulk_to_global(void* global, const void* shared, unsigned bytes, KERNWRIGHT_CALLER) {
  bulk_copy_to_global(global, shared, bytes, KERNWRIGHT_HERE);
}
inline void cp_async_bulk_commit_group() { bulk_commit_group(); }
// Also for the `.read` form: the copies are carried out here at the latest.
inline void cp_async_bulk_wait_group(unsigned groups_left, KERNWRIGHT_CALLER) {
  bulk_wait_group(groups_left, KERNWRIGHT_HERE);
}

// Proxy fences and prefetches: nothing to model.
inline void fence_proxy_async() {}
inline void fence_mbarrier_init() {}
inline void prefetch_l2(const void*) {}
inline void cp_async_bulk_prefetch_l2(const void*, unsigned) {}

}  // namespace kernwright::emulator
