// The runtime as its callers see it: Python through ctypes, and the sanitized runner.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct kernwright_launch {
  const char* symbol;
  void (*call)(void* const*);
  int module, rank, stream, programmatic;
  unsigned grid[3], block[3], shared_bytes;
  const void* arguments;               // packed one after the other
  const std::uint32_t* argument_ends;  // byte offsets
  int argument_count;
};

// `policy`: 0 round robin, 1 random, 2 adversarial. `poison` fills what nobody has written. A thread that runs
// for `patience` seconds without a switch is given up.
void* kernwright_create(std::uint64_t seed, int policy, unsigned poison, int concurrent, double patience);
void kernwright_destroy(void* world);
int kernwright_module(void* world, void* (*shared)(), void* (*dynamic)());
// `access`: 0 in, 1 out, 2 inout. The buffer ends at a page's end, or begins at its beginning. Null if the
// machine has no memory left.
void* kernwright_buffer(void* world, const char* name, int rank, std::size_t bytes, int access, int at_end);
void kernwright_add_launch(void* world, const kernwright_launch* launch);
// Runs everything once. The report is empty, or lines of `key<TAB>value`.
const char* kernwright_run(void* world);
std::uint64_t kernwright_switches(void* world);
}
