// The runtime's data: threads, CTAs, grids, and the world that runs them. One CTA at a time holds the baton;
// whoever holds it owns all of this.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../include/interface.h"
#include "context.h"
#include "random.h"

namespace kernwright::emulator {

constexpr unsigned WARP = 32;
constexpr unsigned BARRIERS = 16;
constexpr unsigned MAX_THREADS = 1024;
constexpr int STUCK_SIGNAL = SIGURG;  // ignored by everybody else

enum class State : std::uint8_t { unstarted, ready, running, waiting, done };
enum class Waiting : std::uint8_t { none, barrier, warp, poll, grid };

struct Wait {
  Waiting kind = Waiting::none;
  Place place{"", 0};
  const void* address = nullptr;
  unsigned id = 0;
};

struct Copy {
  void* target;
  const void* source;
  unsigned bytes, valid_bytes;
};
// Copies that a thread has issued and not yet waited for.
struct Copies {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

// Finds out that a thread only repeats loads it has done before (Brent's cycle detection).
struct Spin {
  const void* address = nullptr;
  std::uint64_t value = 0;
  int line = 0;
  std::uint64_t changes = ~std::uint64_t{0};
  unsigned lap = 0, power = 1;
};

struct Fiber {
  Context context;
  void* sanitizer = nullptr;  // ThreadSanitizer's idea of this fiber
  Index3 thread{};
  int slot = -1;  // its stack, among the CTA's
  State state = State::unstarted;
  bool reads_clock = false;
  std::uint64_t woken_at = ~std::uint64_t{0};  // the writes that had happened when it was last woken without one
  unsigned chances = 0;  // to be woken so once more
  Wait wait;
  std::uint64_t value = 0, result = 0;  // what it brings to an exchange, and what it takes away
  int argument = 0, width = 0;
  Spin spin;
  std::unique_ptr<Copies> async, bulk;
};

struct Barrier {
  unsigned expected = 0, arrived = 0, generation = 0;
  Place first{"", 0};
  unsigned trues = 0;
  int result = 0;
  std::array<std::uint32_t, MAX_THREADS / WARP> participants{}, waiting{};
  char token[2] = {};  // addresses that ThreadSanitizer synchronises on, by generation parity
};

struct Collective {
  Exchange kind{};
  unsigned mask = 0, arrived = 0;
  Place place{"", 0};
};

struct Warp {
  std::uint32_t live = 0, ready = 0;
  std::vector<Collective> open;
  unsigned generation = 0;
  char token[2] = {};
};

struct BulkCopy {
  Copy copy;
  std::uint64_t* barrier;
};

struct Grid;

struct Cta {
  Grid* grid = nullptr;
  unsigned id = 0;  // position among the CTAs of the run
  Index3 block{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::uint32_t ready_warps = 0;
  std::array<Barrier, BARRIERS> barriers;
  std::vector<std::uint64_t*> mbarriers;
  std::vector<BulkCopy> bulk_copies;
  unsigned live = 0, current = 0;
  bool triggered = false, starved = false;
  unsigned priority = 0;
  std::array<unsigned, MAX_THREADS / WARP> warp_priority{};
  bool lanes_descend = false;

  char* stacks = nullptr;
  std::vector<int> free_slots;
  int slots_used = 0;
  Context main;
  void* main_sanitizer = nullptr;
  pthread_t thread{};
  std::atomic<int> baton{0};
  void* signal_stack = nullptr;

  Fiber& fiber() { return fibers[current]; }
};

// A loaded object: where its shared memory lies within the block that the OS gives each thread.
struct Module {
  void* (*shared)() = nullptr;
  void* (*dynamic)() = nullptr;
  std::ptrdiff_t anchor_offset = -1;
  std::size_t shared_bytes = 0;
};

struct Grid {
  int index = 0, rank = 0, stream = 0;
  std::string symbol;
  Module* module = nullptr;
  void (*call)(void* const*) = nullptr;
  std::vector<char> argument_bytes;
  std::vector<void*> arguments;
  Index3 blocks{}, threads{};
  unsigned thread_count = 0, block_count = 0, shared_bytes = 0;
  bool programmatic = false;

  Grid* previous = nullptr;
  bool started = false, done = false;
  unsigned finished = 0, released = 0;  // released: CTAs that let dependents launch, or ended
  std::vector<std::unique_ptr<Cta>> ctas;
  std::vector<std::pair<Cta*, unsigned>> waiters;
  char* stacks = nullptr;
  std::size_t stack_bytes = 0;
  char token = 0;
};

enum class Access : int { in, out, inout };

struct Buffer {
  std::string name;
  int rank = 0;
  Access access{};
  char *data = nullptr, *mapping = nullptr, *pages = nullptr;
  std::size_t bytes = 0, mapped = 0, page_bytes = 0;
};

enum class FaultKind : int {
  none, out_of_bounds, read_only, misaligned, deadlock, divergence, scope, misuse, trap, stack_overflow, conversion,
};

struct Fault {
  FaultKind kind = FaultKind::none;
  std::string text;
  std::string kernel;
  int launch = -1, rank = -1;
  Index3 block{}, thread{};
  Place place{"", 0};
  std::string buffer;
  int buffer_rank = -1;
  std::int64_t offset = 0;
  bool write = false;
  std::uint64_t pc = 0;
  std::vector<std::string> waits;
};

enum class Policy : int { round_robin, random, adversarial };

// Who has used a word atomically, and the narrowest scope that was asked for.
struct AtomicUse {
  const Grid* grid = nullptr;
  unsigned cta = 0;
  int scope = 0;
  Place place{"", 0};
  bool several_ctas = false, several_ranks = false;
};

struct World {
  Policy policy = Policy::round_robin;
  Random random{0};
  unsigned yield_shift = 0, hand_over_shift = 0;  // a chance of 1 in 2**shift
  int starved_rank = -1;
  unsigned char poison = 0xff, shared_poison = 0xff;
  bool concurrent = false, sanitized = false;

  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<std::unique_ptr<Module>> modules;
  std::vector<std::unique_ptr<Grid>> grids;
  std::vector<Grid*> startable;
  std::vector<Cta*> ctas;
  std::vector<std::uint64_t> runnable;  // one bit a CTA
  std::vector<Cta*> candidates;  // scratch of the choice among them
  unsigned grids_left = 0, last_cta = 0;
  std::unordered_map<std::uintptr_t, std::vector<std::pair<Cta*, unsigned>>> parked;
  std::unordered_map<std::uintptr_t, AtomicUse> atomics;
  std::uint64_t clock = 0, leap = 0, changes = 0, switches = 0;
  int cpu = -1;
  std::atomic<bool> aborted{false};
  std::atomic<int> main_baton{0};
  std::atomic<std::uint64_t> pulse{0};  // moves as long as threads come to switches or to their end
  std::atomic<pthread_t> running{};     // the OS thread that holds the baton
  double patience = 30.0;               // seconds without a pulse until the running thread is given up
  Fault fault;
};

extern __thread Cta* current_cta;
extern World* world;

// cta.cpp
void prepare_cta(Cta& cta, Grid& grid, unsigned index);
void run_cta(Cta& cta);
void leave(bool avoid_self = false);
void yield_point();
void make_ready(Cta& cta, unsigned fiber);
void wait_here(Waiting kind, Place place, const void* address = nullptr, unsigned id = 0);
std::size_t stack_bytes_per_thread();
// collectives.cpp
void threads_left(Cta& cta, unsigned fiber);
// baton.cpp
void post(std::atomic<int>& baton);
void await(std::atomic<int>& baton);
void await_watching(std::atomic<int>& baton);
void pass_baton(const Cta* avoid);
bool hand_over(Cta& cta, bool avoid_self);
void note_runnable(Cta& cta, bool runnable);
// world.cpp
void grid_released(Grid& grid);
void run_world();
// atomics.cpp
void wake(const void* address);
void wake_all_parked();
// deadlock.cpp
void describe_waits(std::vector<std::string>& lines);
// fault.cpp
void record(Fault fault);
[[noreturn]] void fail(Fault fault);
[[noreturn]] void escape();
std::string describe_address(const void* address);
const Buffer* buffer_near(const void* address);
void install_signal_handlers();
void restore_signal_handlers();
void enter_thread(Cta& cta);
void leave_thread(Cta& cta);

}  // namespace kernwright::emulator
