// Building a world from outside, running it, and the report as text.
#include "api.h"

#include <link.h>
#include <sys/mman.h>

#include <cstring>
#include <mutex>

#include "state.h"

namespace kernwright::emulator {

namespace {

constexpr std::size_t PAGE = 4096;
constexpr std::size_t GUARD = 1 << 20;  // wide, so that a whole row past the end is found too
constexpr std::size_t ALIGNMENT = 16;   // of a buffer's beginning, whatever its size

struct TlsSearch {
  const void* anchor;
  std::ptrdiff_t offset = -1;
  std::size_t bytes = 0;
};

int look_for_tls(dl_phdr_info* info, std::size_t, void* argument) {
  auto& search = *static_cast<TlsSearch*>(argument);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
    const auto* begin = static_cast<const char*>(info->dlpi_tls_data);
    const auto* anchor = static_cast<const char*>(search.anchor);
    if (anchor < begin || anchor >= begin + header.p_memsz) continue;
    search.offset = anchor - begin;
    search.bytes = header.p_memsz;
    return 1;
  }
  return 0;
}

void put(std::string& report, const char* key, const std::string& value) {
  report += key;
  report += '\t';
  report += value;
  report += '\n';
}

std::string three(const Index3& index) {
  return std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z);
}

std::string report_of(const Fault& fault) {
  std::string report;
  if (fault.kind == FaultKind::none) return report;
  put(report, "kind", std::to_string(static_cast<int>(fault.kind)));
  put(report, "text", fault.text);
  put(report, "kernel", fault.kernel);
  put(report, "launch", std::to_string(fault.launch));
  put(report, "rank", std::to_string(fault.rank));
  put(report, "block", three(fault.block));
  put(report, "thread", three(fault.thread));
  put(report, "file", fault.place.file);
  put(report, "line", std::to_string(fault.place.line));
  put(report, "buffer", fault.buffer);
  put(report, "buffer_rank", std::to_string(fault.buffer_rank));
  put(report, "offset", std::to_string(fault.offset));
  put(report, "write", std::to_string(fault.write));
  put(report, "pc", std::to_string(fault.pc));
  for (const auto& wait : fault.waits) put(report, "wait", wait);
  return report;
}

std::mutex one_run_at_a_time;  // signal handlers and `world` are the process's
std::string last_report;

}  // namespace

}  // namespace kernwright::emulator

using namespace kernwright::emulator;

void* kernwright_create(std::uint64_t seed, int policy, unsigned poison, int concurrent, double patience) {
  auto* made = new World;
  made->patience = patience;
  made->policy = static_cast<Policy>(policy);
  made->random = Random(seed);
  made->poison = static_cast<unsigned char>(poison);
  // Another pattern than global memory's, so that what was copied from it isn't taken for untouched.
  made->shared_poison = static_cast<unsigned char>(poison == 0xff ? poison : poison + 1);
  made->concurrent = concurrent != 0;
  made->yield_shift = made->random.below(4);
  made->hand_over_shift = made->policy == Policy::adversarial ? 0 : 1 + made->random.below(5);
  return made;
}

void kernwright_destroy(void* handle) {
  auto* made = static_cast<World*>(handle);
  for (const auto& buffer : made->buffers) munmap(buffer->mapping, buffer->mapped);
  delete made;
}

int kernwright_module(void* handle, void* (*shared)(), void* (*dynamic)()) {
  auto& made = *static_cast<World*>(handle);
  auto module = std::make_unique<Module>();
  module->shared = shared;
  module->dynamic = dynamic;
  TlsSearch search{shared()};
  dl_iterate_phdr(look_for_tls, &search);
  module->anchor_offset = search.offset < 0 ? 0 : search.offset;
  module->shared_bytes = search.bytes;
  made.modules.push_back(std::move(module));
  return static_cast<int>(made.modules.size()) - 1;
}

void* kernwright_buffer(void* handle, const char* name, int rank, std::size_t bytes, int access, int at_end) {
  auto& made = *static_cast<World*>(handle);
  auto buffer = std::make_unique<Buffer>();
  buffer->page_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
  buffer->mapped = GUARD + buffer->page_bytes + GUARD;
  void* mapping = mmap(nullptr, buffer->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  buffer->mapping = static_cast<char*>(mapping);
  buffer->pages = buffer->mapping + GUARD;
  if (mprotect(buffer->pages, buffer->page_bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(buffer->pages, made.poison, buffer->page_bytes);
  const std::size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  buffer->data = at_end ? buffer->pages + buffer->page_bytes - room : buffer->pages;
  buffer->name = name;
  buffer->rank = rank;
  buffer->access = static_cast<Access>(access);
  buffer->bytes = bytes;
  made.buffers.push_back(std::move(buffer));
  return made.buffers.back()->data;
}

void kernwright_add_launch(void* handle, const kernwright_launch* launch) {
  auto& made = *static_cast<World*>(handle);
  auto grid = std::make_unique<Grid>();
  grid->index = static_cast<int>(made.grids.size());
  grid->symbol = launch->symbol;
  grid->call = launch->call;
  grid->module = made.modules[static_cast<std::size_t>(launch->module)].get();
  grid->rank = launch->rank;
  grid->stream = launch->stream;
  grid->programmatic = launch->programmatic != 0;
  grid->blocks = Index3{launch->grid[0], launch->grid[1], launch->grid[2]};
  grid->threads = Index3{launch->block[0], launch->block[1], launch->block[2]};
  grid->block_count = launch->grid[0] * launch->grid[1] * launch->grid[2];
  grid->thread_count = launch->block[0] * launch->block[1] * launch->block[2];
  grid->shared_bytes = launch->shared_bytes;
  // Each argument gets 16 aligned bytes or more of its own: they are read in place, with their own types.
  std::size_t begin = 0, total = 0;
  std::vector<std::size_t> places;
  for (int i = 0; i < launch->argument_count; ++i) {
    places.push_back(total);
    total += (launch->argument_ends[i] - begin + 15) / 16 * 16;
    begin = launch->argument_ends[i];
  }
  grid->argument_bytes.resize(total + 16);
  char* base = grid->argument_bytes.data();
  base += -reinterpret_cast<std::uintptr_t>(base) % 16;
  begin = 0;
  for (int i = 0; i < launch->argument_count; ++i) {
    std::memcpy(base + places[static_cast<std::size_t>(i)], static_cast<const char*>(launch->arguments) + begin,
                launch->argument_ends[i] - begin);
    grid->arguments.push_back(base + places[static_cast<std::size_t>(i)]);
    begin = launch->argument_ends[i];
  }
  for (const auto& earlier : made.grids)
    if (earlier->rank == grid->rank && earlier->stream == grid->stream) grid->previous = earlier.get();
  made.grids.push_back(std::move(grid));
}

const char* kernwright_run(void* handle) {
  const std::lock_guard<std::mutex> lock(one_run_at_a_time);
  world = static_cast<World*>(handle);
  int ranks = 0;
  for (const auto& grid : world->grids) ranks = grid->rank >= ranks ? grid->rank + 1 : ranks;
  if (world->policy == Policy::adversarial && ranks > 1 && world->random.one_in(1))
    world->starved_rank = static_cast<int>(world->random.below(static_cast<unsigned>(ranks)));
  for (const auto& buffer : world->buffers)
    if (buffer->access == Access::in) mprotect(buffer->pages, buffer->page_bytes, PROT_READ);
  run_world();
  for (const auto& buffer : world->buffers)
    if (buffer->access == Access::in) mprotect(buffer->pages, buffer->page_bytes, PROT_READ | PROT_WRITE);
  for (const auto& buffer : world->buffers) {
    if (world->aborted || buffer->access == Access::in) continue;
    for (char* byte = buffer->pages; byte < buffer->pages + buffer->page_bytes; ++byte) {
      if (byte == buffer->data) byte += buffer->bytes;
      if (byte >= buffer->pages + buffer->page_bytes || static_cast<unsigned char>(*byte) == world->poison) continue;
      Fault fault;
      fault.kind = FaultKind::out_of_bounds;
      fault.write = true;
      fault.buffer = buffer->name;
      fault.buffer_rank = buffer->rank;
      fault.offset = byte - buffer->data;
      fault.text = "it has " + std::to_string(buffer->bytes) + " bytes";
      record(std::move(fault));
      break;
    }
  }
  last_report = report_of(world->fault);
  return last_report.c_str();
}

std::uint64_t kernwright_switches(void* handle) { return static_cast<World*>(handle)->switches; }
