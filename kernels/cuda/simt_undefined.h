// The handlers that the compiler calls where C++ leaves a result undefined (-fsanitize=...): under the emulator they
// end the launch. Only for the host. Names and layouts are those of the compilers' own run-time library, which is not
// linked.
#pragma once
#include "simt_engine.h"

namespace simt {

// The beginning of the data of every handler.
struct Place {
  const char* file;
  u32 line, column;
};

}  // namespace simt

#define SIMT_UNDEFINED(name, what, ...)                                        \
  extern "C" __attribute__((weak, noinline, cold)) void __ubsan_handle_##name( \
      const simt::Place* place, ##__VA_ARGS__) {                               \
    simt::fail({place->file, place->line}, what);                              \
  }

SIMT_UNDEFINED(shift_out_of_bounds, "a shift by more bits than the number has", void*, void*)
SIMT_UNDEFINED(out_of_bounds, "an index outside of an array", void*)
SIMT_UNDEFINED(divrem_overflow, "a division by zero, or one that overflows", void*, void*)
SIMT_UNDEFINED(add_overflow, "a signed addition overflows", void*, void*)
SIMT_UNDEFINED(sub_overflow, "a signed subtraction overflows", void*, void*)
SIMT_UNDEFINED(mul_overflow, "a signed multiplication overflows", void*, void*)
SIMT_UNDEFINED(negate_overflow, "a signed negation overflows", void*)

#undef SIMT_UNDEFINED
