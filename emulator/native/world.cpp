// Grids and streams: when a grid starts, on which threads and stacks, and when it is done.
#include <sched.h>
#include <sys/mman.h>

#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

namespace {

constexpr std::size_t PAGE = 4096;
constexpr std::size_t OS_STACK = sanitizer::ON ? 1 << 20 : 128 * 1024;

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
  if (world->aborted) pass_baton(nullptr);
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
