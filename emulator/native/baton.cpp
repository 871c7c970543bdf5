// The baton: whichever CTA holds it runs; who gets it next, and what happens when nobody can take it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"

namespace kernwright::emulator {

namespace {

constexpr std::uint64_t LAST_LEAP = 3'600'000'000'000;  // an hour: whoever waits longer waits for ever
constexpr unsigned CHANCES = 16;  // whoever reads words a second time without waiting is taken for a poller at first

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
  bool chance = false, watched = false;
  for (const auto& [key, list] : world->parked)
    for (const auto& [cta, index] : list) {
      Fiber& fiber = cta->fibers[index];
      if (fiber.woken_at != world->changes) fiber.chances = CHANCES;
      fiber.woken_at = world->changes;
      watched |= fiber.reads_clock;
      if (fiber.chances == 0) continue;
      --fiber.chances;
      chance = true;
    }
  if (chance) {
    wake_all_parked();
    return true;
  }
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

}  // namespace

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

}  // namespace kernwright::emulator
