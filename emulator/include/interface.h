// What a kernel compiled for the CPU and the runtime that schedules it agree on.
//
// Everything a kernel calls that isn't plain C++ ends in one of these functions; most of them may switch to
// another CUDA thread before they return. `Place` is the line of the generated file that a report names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kernwright::emulator {

struct Index3 {
  unsigned x, y, z;
};

struct Place {
  const char* file;
  int line;
};

// The special registers of the CUDA thread that runs now. A CTA stays on one OS thread.
struct Registers {
  Index3 thread, block, threads, blocks;
};
extern __thread Registers registers __attribute__((tls_model("initial-exec")));

// ---- within a CTA ----

enum class Reduction : unsigned char { none, count, all, any };

int block_barrier(Reduction reduction, bool predicate, Place place);
void named_barrier(unsigned id, unsigned threads, bool waits, Place place);

enum class Exchange : unsigned char {
  sync, shuffle, shuffle_up, shuffle_down, shuffle_xor, ballot, match_any, match_all,
  add, min_signed, max_signed, min_unsigned, max_unsigned, bit_and, bit_or, bit_xor,
};

// One operation of a warp: returns when every live lane of `mask` has called it.
std::uint64_t warp_exchange(Exchange kind, unsigned mask, std::uint64_t value, int argument, int width, Place place);
unsigned active_mask();

// ---- atomics: the kernel performs them itself, between these two ----

enum class Operation : unsigned char { load, store, update };

// Checks address and scope, and lets others run first. `scope` is one of the __NV_THREAD_SCOPE constants.
void before_atomic(Operation operation, const void* address, unsigned bytes, int scope, Place place);
// A load that repeats itself without news waits here until somebody writes.
void after_load(const void* address, std::uint64_t value, Place place);
void after_write(const void* address, unsigned bytes, bool changed, Place place);
// Whether this schedule may let others run between the two 8-byte halves of a 16-byte word.
void between_halves(Place place);

// ---- asynchronous copies: carried out at their wait, or at once where the schedule says so ----

void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid_bytes, Place place);
void copy_async_commit();
void copy_async_wait(unsigned groups_left, Place place);

void mbarrier_init(std::uint64_t* barrier, unsigned arrivals, Place place);
std::uint64_t mbarrier_arrive(std::uint64_t* barrier, unsigned arrivals, unsigned expected_bytes, Place place);
void mbarrier_expect_tx(std::uint64_t* barrier, unsigned bytes, Place place);
bool mbarrier_try_wait(std::uint64_t* barrier, unsigned parity, Place place);
void mbarrier_wait(std::uint64_t* barrier, unsigned parity, Place place);

void bulk_copy_to_shared(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier, Place place);
void bulk_copy_to_global(void* global, const void* shared, unsigned bytes, Place place);
void bulk_commit_group();
void bulk_wait_group(unsigned groups_left, Place place);

// ---- grids, time ----

void grid_launch_dependents();
void grid_wait(Place place);
std::uint64_t clock_nanoseconds();
std::uint64_t grid_number();
void sleep_nanoseconds(unsigned nanoseconds, Place place);
[[noreturn]] void trap(const char* reason, Place place);

}  // namespace kernwright::emulator
