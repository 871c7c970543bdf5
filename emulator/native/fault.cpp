// What went wrong, and the way out: the running thread is abandoned where it stands, and its CTA's OS thread
// returns from the run.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cstring>

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

namespace {

constexpr std::size_t SIGNAL_STACK = 64 * 1024;
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, STUCK_SIGNAL};
struct sigaction previous_handlers[std::size(SIGNALS)];

const Buffer* buffer_with_guards(const void* address) {
  for (const auto& buffer : world->buffers)
    if (address >= buffer->mapping && address < buffer->mapping + buffer->mapped) return buffer.get();
  return nullptr;
}

bool below_stacks(const Cta& cta, const char* address) {
  return address < cta.stacks && address >= cta.stacks - 2 * 4096;
}

void describe_access(Fault& fault, const char* address) {
  const Buffer* buffer = buffer_with_guards(address);
  if (buffer == nullptr) {
    char text[64];
    std::snprintf(text, sizeof text, "the address 0x%zx, which belongs to no buffer", reinterpret_cast<std::size_t>(address));
    fault.text = text;
    return;
  }
  fault.buffer = buffer->name;
  fault.buffer_rank = buffer->rank;
  fault.offset = address - buffer->data;
  const bool within = fault.offset >= 0 && static_cast<std::size_t>(fault.offset) < buffer->bytes;
  if (within) fault.kind = FaultKind::read_only;
  fault.text = within ? "it is an input" : "it has " + std::to_string(buffer->bytes) + " bytes";
}

void chain(int signal, siginfo_t* info, void* context) {
  for (std::size_t i = 0; i < std::size(SIGNALS); ++i) {
    if (SIGNALS[i] != signal) continue;
    const struct sigaction& previous = previous_handlers[i];
    if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
    if (signal == STUCK_SIGNAL && previous.sa_handler == SIG_DFL) return;
    if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
    sigaction(signal, &previous, nullptr);  // the default action, when the instruction runs again
  }
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (current_cta == nullptr) return chain(signal, info, context);
  const auto* address = static_cast<const char*>(info->si_addr);
  Fault fault;
  fault.kind = FaultKind::out_of_bounds;
#ifdef __x86_64__
  const auto& registers_then = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  fault.pc = static_cast<std::uint64_t>(registers_then[REG_RIP]);
  fault.write = (registers_then[REG_ERR] & 2) != 0;
  Dl_info object;
  if (dladdr(reinterpret_cast<void*>(fault.pc), &object) != 0)
    fault.pc -= reinterpret_cast<std::uint64_t>(object.dli_fbase);
#endif
  if (signal == STUCK_SIGNAL) {
    fault.kind = FaultKind::misuse;
    fault.text = "a thread runs on and on without a barrier, shuffle, atomic or end; does it wait for a plain variable?";
  } else if (signal == SIGFPE || signal == SIGILL) {
    fault.kind = FaultKind::trap;
    fault.text = signal == SIGFPE ? "an integer division by zero stopped the kernel" : "an illegal instruction stopped the kernel";
  } else if (below_stacks(*current_cta, address)) {
    fault.kind = FaultKind::stack_overflow;
    fault.text = "a thread used more than its " + std::to_string(stack_bytes_per_thread()) + " bytes of stack";
  } else {
    describe_access(fault, address);
  }
  fail(std::move(fault));
}

}  // namespace

const Buffer* buffer_near(const void* address) {
  const Buffer* buffer = buffer_with_guards(address);
  const bool within = buffer != nullptr && address >= buffer->data && address < buffer->data + buffer->bytes;
  return within ? buffer : nullptr;
}

std::string describe_address(const void* address) {
  const Buffer* buffer = buffer_with_guards(address);
  if (buffer == nullptr) {
    char text[32];
    std::snprintf(text, sizeof text, "%p", address);
    return std::string("shared memory at ") + text;
  }
  return buffer->name + " + " + std::to_string(static_cast<const char*>(address) - buffer->data) + " bytes of rank " +
         std::to_string(buffer->rank);
}

void record(Fault fault) {
  if (world->aborted) return;
  if (current_cta != nullptr && fault.kernel.empty()) {
    const Cta& cta = *current_cta;
    fault.kernel = cta.grid->symbol;
    fault.launch = cta.grid->index;
    fault.rank = cta.grid->rank;
    fault.block = cta.block;
    fault.thread = cta.fibers[cta.current].thread;
  }
  world->fault = std::move(fault);
  world->aborted = true;
}

void fail(Fault fault) {
  record(std::move(fault));
  escape();
}

void escape() {
  Cta& cta = *current_cta;
  sanitizer::switch_to(cta.main_sanitizer);
  Context abandoned;
  switch_context(abandoned, cta.main);
  __builtin_unreachable();
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < std::size(SIGNALS); ++i) sigaction(SIGNALS[i], &action, &previous_handlers[i]);
}

void restore_signal_handlers() {
  for (std::size_t i = 0; i < std::size(SIGNALS); ++i) sigaction(SIGNALS[i], &previous_handlers[i], nullptr);
}

// An OS thread that runs CTAs: its signal stack, and IEEE arithmetic whatever the process has set.
void enter_thread(Cta& cta) {
  cta.signal_stack = mmap(nullptr, SIGNAL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack_t stack{};
  stack.ss_sp = cta.signal_stack;
  stack.ss_size = SIGNAL_STACK;
  sigaltstack(&stack, nullptr);
#ifdef __x86_64__
  _mm_setcsr(0x1f80);
#endif
}

void leave_thread(Cta& cta) {
  stack_t stack{};
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
  munmap(cta.signal_stack, SIGNAL_STACK);
}

}  // namespace kernwright::emulator

// ---- what the compiler's checks call (-fsanitize=alignment,bounds,float-cast-overflow) ----

namespace {

struct SourceLocation {
  const char* file;
  std::uint32_t line, column;
};
struct TypeDescriptor {
  std::uint16_t kind, information;
  char name[1];
};
struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor* type;
  unsigned char log_alignment, access;
};
struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor *array, *index;
};
struct CastOverflow {
  SourceLocation location;
  const TypeDescriptor *from, *to;
};

[[noreturn]] void report(kernwright::emulator::FaultKind kind, std::string text, const SourceLocation& location) {
  kernwright::emulator::Fault fault;
  fault.kind = kind;
  fault.text = std::move(text);
  fault.place = kernwright::emulator::Place{location.file, static_cast<int>(location.line)};
  kernwright::emulator::fail(std::move(fault));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void __ubsan_handle_type_mismatch_v1(TypeMismatch* data,
                                                                                       std::uintptr_t address) {
  using namespace kernwright::emulator;
  report(FaultKind::misaligned,
         std::string("an access of type ") + data->type->name + ", aligned to " +
             std::to_string(1u << data->log_alignment) + " bytes, at " +
             describe_address(reinterpret_cast<const void*>(address)),
         data->location);
}

extern "C" __attribute__((visibility("default"))) void __ubsan_handle_out_of_bounds(OutOfBounds* data,
                                                                                    std::uintptr_t index) {
  report(kernwright::emulator::FaultKind::out_of_bounds,
         "index " + std::to_string(static_cast<std::intptr_t>(index)) + " of an array of type " + data->array->name,
         data->location);
}

extern "C" __attribute__((visibility("default"))) void __ubsan_handle_float_cast_overflow(CastOverflow* data,
                                                                                          std::uintptr_t) {
  report(kernwright::emulator::FaultKind::conversion,
         std::string("a value of type ") + data->from->name + " that doesn't fit " + data->to->name +
             " is converted; CUDA saturates there, other processors don't: clamp first",
         data->location);
}
