// Fibers for the emulator: stacks, and a switch between them in user space. Only for the host.
#pragma once
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// Saves the registers that a function must preserve on the current stack, stores the stack pointer in `*from`, and
// continues where the fiber with the stack pointer `to` stopped. This takes a few nanoseconds: a kernel switches at
// every primitive of every thread.
extern "C" void simt_switch(void** from, void* to) __asm__("simt_switch");

#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".p2align 4\n"
    "simt_switch:\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n"
    ".p2align 4\n"
    "simt_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n"
    "  stp x21, x22, [sp, #16]\n"
    "  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n"
    "  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n"
    "  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n"
    "  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n"
    "  ldp x21, x22, [sp, #16]\n"
    "  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n"
    "  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n"
    "  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n");
#else
#error "The emulator switches fibers in assembly, which exists for x86-64 and AArch64"
#endif

namespace simt {

// The stacks of a block's threads, each with an inaccessible page below it.
struct Stacks {
  static constexpr size_t BYTES = 64 << 10;
  char* memory = nullptr;
  size_t guard = 0;
  size_t length = 0;

  bool make(uint32_t count) {
    guard = (size_t)sysconf(_SC_PAGESIZE);
    length = count * (BYTES + guard);
    void* const p = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (p == MAP_FAILED) return false;
    memory = (char*)p;
    for (uint32_t i = 0; i < count; i++) {
      if (mprotect(memory + i * (BYTES + guard), guard, PROT_NONE) != 0) return false;
    }
    return true;
  }

  ~Stacks() {
    if (memory) munmap(memory, length);
  }

  // The stack pointer of a fiber that begins with `start`, which must not return.
  void* begin(uint32_t i, void (*start)()) const {
    void** const top = (void**)(memory + (i + 1) * (BYTES + guard));
#if defined(__x86_64__)
    // Six registers, the return address of the switch, and above it the return address that a function expects.
    void** const sp = top - 8;
    memset(sp, 0, 8 * sizeof(void*));
    sp[6] = (void*)start;
#else
    void** const sp = top - 20;
    memset(sp, 0, 20 * sizeof(void*));
    sp[11] = (void*)start;
#endif
    return sp;
  }
};

}  // namespace simt
