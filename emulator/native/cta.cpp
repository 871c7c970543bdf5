// The threads of one CTA: who runs next, and on which stack.
#include <cstdio>
#include <cstring>

#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

__thread Registers registers;
__thread Cta* current_cta = nullptr;
World* world = nullptr;

namespace {

constexpr std::size_t STACK_BYTES = sanitizer::ON ? 256 * 1024 : 64 * 1024;
constexpr std::uint64_t CANARY = 0x6b65726e77726967u;

char* stack_bottom(Cta& cta, int slot) { return cta.stacks + static_cast<std::size_t>(slot) * STACK_BYTES; }

std::uint64_t& canary(Cta& cta, int slot) { return *reinterpret_cast<std::uint64_t*>(stack_bottom(cta, slot)); }

int take_slot(Cta& cta) {
  if (!cta.free_slots.empty()) {
    const int slot = cta.free_slots.back();
    cta.free_slots.pop_back();
    return slot;
  }
  const int slot = cta.slots_used++;
  canary(cta, slot) = CANARY;
  return slot;
}

void check_stack(Cta& cta, const Fiber& fiber) {
  if (canary(cta, fiber.slot) == CANARY) return;
  Fault fault;
  fault.kind = FaultKind::stack_overflow;
  fault.text = "a thread used more than its " + std::to_string(STACK_BYTES) + " bytes of stack";
  fail(std::move(fault));
}

void become(Cta& cta, unsigned index) {
  Fiber& fiber = cta.fibers[index];
  cta.current = index;
  fiber.state = State::running;
  registers.thread = fiber.thread;
}

void take_ready(Cta& cta, unsigned index) {
  Warp& warp = cta.warps[index / WARP];
  warp.ready &= ~(1u << index % WARP);
  if (warp.ready == 0) {
    cta.ready_warps &= ~(1u << index / WARP);
    if (cta.ready_warps == 0) note_runnable(cta, false);
  }
}

unsigned after(std::uint32_t bits, unsigned position) {
  const std::uint32_t later = position >= 31 ? 0 : bits & ~((2u << position) - 1);
  return static_cast<unsigned>(__builtin_ctz(later != 0 ? later : bits));
}

// A thread that is ready, in the order of the policy. `avoid` is chosen only if it is the only one.
unsigned choose(Cta& cta, int avoid) {
  std::uint32_t warps = cta.ready_warps;
  if (avoid >= 0) {
    const unsigned own = static_cast<unsigned>(avoid) / WARP;
    if (cta.warps[own].ready == 1u << avoid % WARP && (warps & ~(1u << own)) != 0) warps &= ~(1u << own);
  }
  unsigned warp = cta.current / WARP;
  unsigned lane = 0;
  switch (world->policy) {
    case Policy::round_robin:
      if (!(warps >> warp & 1)) warp = after(warps, warp);
      lane = warp == cta.current / WARP ? after(cta.warps[warp].ready, cta.current % WARP)
                                        : static_cast<unsigned>(__builtin_ctz(cta.warps[warp].ready));
      break;
    case Policy::random: {
      if (!(warps >> warp & 1) || world->random.one_in(world->yield_shift))
        warp = nth_bit(warps, world->random.below(static_cast<unsigned>(__builtin_popcount(warps))));
      std::uint32_t lanes = cta.warps[warp].ready;
      if (avoid >= 0 && warp == static_cast<unsigned>(avoid) / WARP && lanes != 1u << avoid % WARP)
        lanes &= ~(1u << avoid % WARP);
      lane = nth_bit(lanes, world->random.below(static_cast<unsigned>(__builtin_popcount(lanes))));
      break;
    }
    case Policy::adversarial: {
      warp = static_cast<unsigned>(__builtin_ctz(warps));
      for (std::uint32_t rest = warps; rest != 0; rest &= rest - 1) {
        const unsigned other = static_cast<unsigned>(__builtin_ctz(rest));
        if (cta.warp_priority[other] < cta.warp_priority[warp]) warp = other;
      }
      std::uint32_t lanes = cta.warps[warp].ready;
      if (avoid >= 0 && warp == static_cast<unsigned>(avoid) / WARP && lanes != 1u << avoid % WARP)
        lanes &= ~(1u << avoid % WARP);
      lane = cta.lanes_descend ? 31u - static_cast<unsigned>(__builtin_clz(lanes))
                               : static_cast<unsigned>(__builtin_ctz(lanes));
      break;
    }
  }
  return warp * WARP + lane;
}

[[noreturn]] void fiber_entry();

// All at once and by the OS thread: whoever creates a fiber comes before it, in ThreadSanitizer's eyes.
void make_sanitizer_fibers(Cta& cta) {
  char name[64];  // what ThreadSanitizer keeps of a name
  for (Fiber& fiber : cta.fibers) {
    std::snprintf(name, sizeof name, "launch %d rank %d CTA (%u,%u,%u) thread (%u,%u,%u)", cta.grid->index,
                  cta.grid->rank, cta.block.x, cta.block.y, cta.block.z, fiber.thread.x, fiber.thread.y,
                  fiber.thread.z);
    fiber.sanitizer = sanitizer::create(name);
  }
}

// Puts `index` onto the processor; `from` is where the present stack is kept.
void resume(Cta& cta, unsigned index, Context& from) {
  Fiber& next = cta.fibers[index];
  if (next.state == State::unstarted) {
    next.slot = take_slot(cta);
    prepare(next.context, stack_bottom(cta, next.slot) + 64, STACK_BYTES - 64, fiber_entry);
  }
  become(cta, index);
  sanitizer::switch_to(next.sanitizer);
  switch_context(from, next.context);
}

void finish(Cta& cta) {
  Fiber& fiber = cta.fiber();
  if (fiber.bulk && !(fiber.bulk->open.empty() && fiber.bulk->groups.empty())) {
    Fault fault;
    fault.kind = FaultKind::misuse;
    fault.text = "a thread ended without waiting for its bulk copies from shared memory";
    fail(std::move(fault));
  }
  check_stack(cta, fiber);
  fiber.state = State::done;
  world->pulse.fetch_add(1, std::memory_order_relaxed);
  sanitizer::release(&cta.grid->token);
  --cta.live;
  threads_left(cta, cta.current);
}

// Runs threads on this stack, one after another, as long as the next one to run hasn't begun: a kernel whose
// threads never wait is a plain loop.
[[noreturn]] void fiber_entry() {
  Cta& cta = *current_cta;
  for (;;) {
    Fiber& fiber = cta.fiber();
    if (!cta.grid->programmatic && cta.grid->previous != nullptr) sanitizer::acquire(&cta.grid->previous->token);
    cta.grid->call(cta.grid->arguments.data());
    finish(cta);
    if (cta.live == 0) {
      sanitizer::switch_to(cta.main_sanitizer);
      switch_context(fiber.context, cta.main);
    }
    while (cta.ready_warps == 0)
      if (!hand_over(cta, false)) escape();
    const unsigned next = choose(cta, -1);
    take_ready(cta, next);
    if (!sanitizer::ON && cta.fibers[next].state == State::unstarted) {
      cta.fibers[next].slot = fiber.slot;
      become(cta, next);
      continue;
    }
    if (!sanitizer::ON) cta.free_slots.push_back(fiber.slot);
    resume(cta, next, fiber.context);
  }
}

}  // namespace

std::size_t stack_bytes_per_thread() { return STACK_BYTES; }

void make_ready(Cta& cta, unsigned index) {
  cta.fibers[index].state = State::ready;
  cta.warps[index / WARP].ready |= 1u << index % WARP;
  if (cta.ready_warps == 0) note_runnable(cta, true);
  cta.ready_warps |= 1u << index / WARP;
}

void leave(bool avoid_self) {
  Cta& cta = *current_cta;
  Fiber& self = cta.fiber();
  const unsigned own = cta.current;
  check_stack(cta, self);
  ++world->switches;
  world->pulse.fetch_add(1, std::memory_order_relaxed);
  world->clock += 100;
  const bool others_turn = avoid_self || !world->startable.empty() ||
                           (world->policy != Policy::round_robin && world->random.one_in(world->hand_over_shift));
  if (world->concurrent && others_turn) hand_over(cta, avoid_self);
  while (cta.ready_warps == 0)
    if (!hand_over(cta, false)) escape();
  const unsigned next = choose(cta, avoid_self ? static_cast<int>(own) : -1);
  take_ready(cta, next);
  if (next == own) {
    self.state = State::running;
    return;
  }
  resume(cta, next, self.context);
}

void yield_point() {
  if (world->policy == Policy::round_robin) return;
  if (world->policy == Policy::random && !world->random.one_in(world->yield_shift)) return;
  make_ready(*current_cta, current_cta->current);
  leave();
}

void wait_here(Waiting kind, Place place, const void* address, unsigned id) {
  Fiber& self = current_cta->fiber();
  self.state = State::waiting;
  self.wait = Wait{kind, place, address, id};
  leave();
  self.wait.kind = Waiting::none;
}

void prepare_cta(Cta& cta, Grid& grid, unsigned index) {
  cta.grid = &grid;
  cta.block = Index3{index % grid.blocks.x, index / grid.blocks.x % grid.blocks.y,
                     index / (grid.blocks.x * grid.blocks.y)};
  const unsigned count = grid.thread_count;
  cta.fibers = std::vector<Fiber>(count);
  cta.warps.assign((count + WARP - 1) / WARP, Warp{});
  cta.barriers = {};
  cta.mbarriers.clear();
  cta.bulk_copies.clear();
  cta.live = count;
  cta.current = 0;
  cta.triggered = false;
  cta.free_slots.clear();
  cta.slots_used = 0;
  cta.ready_warps = 0;
  for (unsigned i = 0; i < count; ++i) {
    cta.fibers[i].thread =
        Index3{i % grid.threads.x, i / grid.threads.x % grid.threads.y, i / (grid.threads.x * grid.threads.y)};
    Warp& warp = cta.warps[i / WARP];
    warp.live |= 1u << i % WARP;
    warp.ready |= 1u << i % WARP;
    cta.ready_warps |= 1u << i / WARP;
  }
  if (world->policy == Policy::adversarial) {
    for (auto& priority : cta.warp_priority) priority = static_cast<unsigned>(world->random.next() >> 33);
    cta.lanes_descend = world->random.one_in(1);
    cta.priority = static_cast<unsigned>(world->random.next() >> 33);
    cta.starved = grid.rank == world->starved_rank || world->random.one_in(3);
  }
}

void run_cta(Cta& cta) {
  current_cta = &cta;
  registers.block = cta.block;
  registers.threads = cta.grid->threads;
  registers.blocks = cta.grid->blocks;
  Module& module = *cta.grid->module;
  char* shared = static_cast<char*>(module.shared()) - module.anchor_offset;
  std::memset(shared, world->shared_poison, module.shared_bytes);
  cta.main_sanitizer = sanitizer::current();
  if (sanitizer::ON) make_sanitizer_fibers(cta);
  const unsigned first = world->policy == Policy::round_robin ? 0 : choose(cta, -1);
  take_ready(cta, first);
  resume(cta, first, cta.main);
  if (world->aborted) return;
  for (Fiber& fiber : cta.fibers) {
    discard(fiber.context);
    if (sanitizer::ON) sanitizer::destroy(fiber.sanitizer);
  }
  if (module.dynamic == nullptr) return;
  const auto* dynamic = static_cast<const unsigned char*>(module.dynamic());
  for (std::size_t i = cta.grid->shared_bytes; i < 227 * 1024; ++i)
    if (dynamic[i] != world->shared_poison) {
      Fault fault;
      fault.kind = FaultKind::out_of_bounds;
      fault.write = true;
      fault.buffer = "dynamic shared memory";
      fault.offset = static_cast<std::int64_t>(i);
      fault.text = "the launch gives " + std::to_string(cta.grid->shared_bytes) + " bytes of dynamic shared memory";
      return record(std::move(fault));
    }
}

}  // namespace kernwright::emulator
