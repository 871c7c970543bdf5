// The switch on x86-64: callee-saved registers and the stack pointer.
#include "context.h"

#ifndef KERNWRIGHT_USES_UCONTEXT
asm(R"(
.text
.globl kernwright_switch
.hidden kernwright_switch
.type kernwright_switch, @function
kernwright_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kernwright_switch, .-kernwright_switch
)");
#endif
