// Grids and streams: when a grid starts, and which CTA holds the baton.
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>

#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

namespace {

constexpr std::size_t PAGE = 4096;
constexpr std::size_t OS_STACK = sanitizer::ON ? 1 << 20 : 128 * 1024;
constexpr std::uint64_t LAST_LEAP = 3'600'000'000'000;  // an hour: whoever waits longer waits for ever

// Futexes by hand: a semaphore of the C library would order memory in ThreadSanitizer's eyes.
void post(std::atomic<int>& baton) {
  baton.store(1, std::memory_order_release);
  syscall(SYS_futex, reinterpret_cast<int*>(&baton), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}
void await(std::atomic<int>& baton) {
  while (baton.exchange(0, std::memory_order_acquire) == 0)
    syscall(SYS_futex, reinterpret_cast<int*>(&baton), FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
}

// The main thread's wait: it also gives up a thread that loops without ever letting others run.
void await_watching(std::atomic<int>& baton) {
  const timespec nap{0, 100'000'000};
  std::uint64_t seen = world->pulse;
  double still = 0;
  while (baton.exchange(0, std::memory_order_acquire) == 0) {
    syscall(SYS_futex, reinterpret_cast<int*>(&baton), FUTEX_WAIT_PRIVATE, 0, &nap, nullptr, 0);
    const std::uint64_t pulse = world->pulse;
    still = pulse == seen ? still + 0.1 : 0;
    seen = pulse;
    if (still < world->patience || world->aborted) continue;
    pthread_kill(world->running, STUCK_SIGNAL);
    still = 0;
  }
}

std::size_t stack_room(const Grid& grid) { return PAGE + grid.thread_count * stack_bytes_per_thread() + PAGE; }

char* map_stacks(std::size_t bytes) {
  void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return mapping == MAP_FAILED ? nullptr : static_cast<char*>(mapping);
}

// A guard page below each CTA's stacks. They begin within a page, so that a stack's canary shares its page
// with the top of the stack below.
void place_stacks(Cta& cta, char* room) {
  mprotect(room, PAGE, PROT_NONE);
  cta.stacks = room + PAGE + PAGE / 2;
}

void out_of_memory(std::size_t bytes) {
  world->fault.kind = FaultKind::misuse;
  world->fault.text = "the machine gives no " + std::to_string(bytes) + " bytes for the stacks of a grid";
  world->aborted = true;
}

bool may_start(const Grid& grid) {
  if (grid.started) return false;
  const Grid* previous = grid.previous;
  if (previous == nullptr || previous->done) return true;
  return grid.programmatic && previous->started && previous->released == previous->block_count;
}

void look_for_startable() {
  for (const auto& grid : world->grids)
    if (may_start(*grid)) {
      grid->started = true;
      world->startable.push_back(grid.get());
    }
}

void grid_finished(Grid& grid) {
  grid.done = true;
  --world->grids_left;
  ++world->changes;
  for (const auto& [cta, fiber] : grid.waiters) make_ready(*cta, fiber);
  grid.waiters.clear();
}

void cta_finished(Cta& cta) {
  Grid& grid = *cta.grid;
  if (!cta.triggered) ++grid.released;
  if (++grid.finished == grid.block_count) grid_finished(grid);
  if (world->concurrent) look_for_startable();
}

Cta* choose_cta(const Cta* avoid) {
  const auto& bits = world->runnable;
  auto& candidates = world->candidates;
  candidates.clear();
  for (std::size_t word = 0; word < bits.size(); ++word)
    for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      Cta* cta = world->ctas[word * 64 + static_cast<unsigned>(__builtin_ctzll(rest))];
      if (cta != avoid) candidates.push_back(cta);
    }
  if (candidates.empty()) return nullptr;
  Cta* best = candidates[0];
  switch (world->policy) {
    case Policy::round_robin:
      for (Cta* cta : candidates)
        if (cta->id > world->last_cta) {
          best = cta;
          break;
        }
      break;
    case Policy::random:
      best = candidates[world->random.below(static_cast<unsigned>(candidates.size()))];
      break;
    case Policy::adversarial:
      for (Cta* cta : candidates)
        if (cta->starved < best->starved || (cta->starved == best->starved && cta->priority < best->priority))
          best = cta;
      break;
  }
  world->last_cta = best->id;
  return best;
}

// Nobody can run: look again at what is polled, let time pass for those who watch it, or give up.
bool revive() {
  if (world->second_chance != world->changes) {
    world->second_chance = world->changes;
    if (!world->parked.empty()) {
      wake_all_parked();
      return true;
    }
  }
  bool watched = false;
  for (const auto& [key, list] : world->parked)
    for (const auto& [cta, fiber] : list) watched |= cta->fibers[fiber].reads_clock;
  if (watched && world->leap < LAST_LEAP) {
    world->leap = world->leap == 0 ? 1'000'000 : world->leap * 2;
    world->clock += world->leap;
    wake_all_parked();
    return true;
  }
  return false;
}

void deadlock() {
  Fault fault;
  fault.kind = FaultKind::deadlock;
  fault.text = "nobody can go on";
  describe_waits(fault.waits);
  world->fault = std::move(fault);
  world->aborted = true;
}

// Everybody leaves: those who wait for the baton find out that it is over.
void dismiss() {
  for (Cta* cta : world->ctas) post(cta->baton);
  post(world->main_baton);
}

void pass_baton(const Cta* avoid) {
  if (world->aborted) {
    dismiss();
    return;
  }
  if (!world->startable.empty() || world->grids_left == 0) {
    post(world->main_baton);
    return;
  }
  Cta* next = choose_cta(avoid);
  if (next == nullptr && avoid != nullptr) next = choose_cta(nullptr);
  if (next == nullptr && revive()) next = choose_cta(nullptr);
  if (next == nullptr) {
    deadlock();
    dismiss();
    return;
  }
  post(next->baton);
}

void* cta_thread(void* argument) {
  Cta& cta = *static_cast<Cta*>(argument);
  enter_thread(cta);
  current_cta = &cta;
  await(cta.baton);
  if (!world->aborted) {
    world->running = pthread_self();
    run_cta(cta);
    note_runnable(cta, false);
    if (!world->aborted) cta_finished(cta);
    pass_baton(nullptr);
  }
  leave_thread(cta);
  return nullptr;
}

void start_grid(Grid& grid) {
  grid.stack_bytes = stack_room(grid) * grid.block_count;
  grid.stacks = map_stacks(grid.stack_bytes);
  if (grid.stacks == nullptr) return out_of_memory(grid.stack_bytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, OS_STACK);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<unsigned>(world->cpu), &one);
  pthread_attr_setaffinity_np(&attributes, sizeof one, &one);
  for (unsigned i = 0; i < grid.block_count; ++i) {
    grid.ctas.push_back(std::make_unique<Cta>());
    Cta& cta = *grid.ctas.back();
    cta.id = static_cast<unsigned>(world->ctas.size());
    world->ctas.push_back(&cta);
    world->runnable.resize(cta.id / 64 + 1);
    prepare_cta(cta, grid, i);
    place_stacks(cta, grid.stacks + i * stack_room(grid));
    if (pthread_create(&cta.thread, &attributes, cta_thread, &cta) != 0) {
      world->ctas.pop_back();
      grid.ctas.pop_back();
      world->fault.kind = FaultKind::misuse;
      world->fault.text = "the machine gives no more than " + std::to_string(world->ctas.size()) +
                          " threads; a CTA that waits for others needs one";
      world->aborted = true;
      break;
    }
    note_runnable(cta, true);
  }
  pthread_attr_destroy(&attributes);
}

void run_concurrently() {
  look_for_startable();
  while (world->grids_left != 0 && !world->aborted) {
    for (Grid* grid : world->startable)
      if (!world->aborted) start_grid(*grid);
    world->startable.clear();
    pass_baton(nullptr);
    await_watching(world->main_baton);
  }
  if (world->aborted) dismiss();
  for (const auto& grid : world->grids) {
    for (const auto& cta : grid->ctas) pthread_join(cta->thread, nullptr);
    if (grid->stacks != nullptr) munmap(grid->stacks, grid->stack_bytes);
    grid->ctas.clear();
  }
}

// No CTA waits for another: one after the other, on one OS thread and one set of stacks.
void* run_in_order(void*) {
  Cta cta;
  enter_thread(cta);
  world->running = pthread_self();
  std::size_t bytes = 0;
  char* stacks = nullptr;
  for (const auto& grid : world->grids) {
    if (stack_room(*grid) > bytes) {
      if (stacks != nullptr) munmap(stacks, bytes);
      bytes = stack_room(*grid);
      stacks = map_stacks(bytes);
      if (stacks == nullptr) {
        out_of_memory(bytes);
        break;
      }
      place_stacks(cta, stacks);
    }
    const unsigned start = world->policy == Policy::round_robin ? 0 : world->random.below(grid->block_count);
    for (unsigned i = 0; i < grid->block_count && !world->aborted; ++i) {
      prepare_cta(cta, *grid, (start + i) % grid->block_count);
      run_cta(cta);
      if (!world->aborted) cta_finished(cta);
    }
    if (world->aborted) break;
  }
  if (stacks != nullptr) munmap(stacks, bytes);
  leave_thread(cta);
  post(world->main_baton);
  return nullptr;
}

}  // namespace

void note_runnable(Cta& cta, bool runnable) {
  if (!world->concurrent) return;
  const std::uint64_t bit = std::uint64_t{1} << cta.id % 64;
  if (runnable)
    world->runnable[cta.id / 64] |= bit;
  else
    world->runnable[cta.id / 64] &= ~bit;
}

void await_baton(Cta& cta) {
  await(cta.baton);
  world->running = pthread_self();
  if (world->aborted) escape();
}

bool hand_over(Cta& cta, bool avoid_self) {
  if (!world->concurrent) {
    if (cta.ready_warps != 0 || revive()) return true;
    deadlock();
    return false;
  }
  pass_baton(avoid_self ? &cta : nullptr);
  await_baton(cta);
  return true;
}

void grid_released(Grid& grid) {
  ++grid.released;
  look_for_startable();
}

void run_world() {
  install_signal_handlers();
  world->cpu = sched_getcpu();
  world->grids_left = static_cast<unsigned>(world->grids.size());
  if (world->concurrent) {
    run_concurrently();
  } else {
    pthread_t thread;
    pthread_create(&thread, nullptr, run_in_order, nullptr);
    await_watching(world->main_baton);
    pthread_join(thread, nullptr);
  }
  restore_signal_handlers();
}

}  // namespace kernwright::emulator
