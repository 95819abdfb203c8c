/* Arithmetic of P4 integers of up to 64 bits, kept as unsigned numbers below 2^width.

   A signed value is its two's complement in `width` bits. Widths are compile-time constants in
   the generated code, so these fold to a few instructions. */
#ifndef P4_ARITH_H
#define P4_ARITH_H

#include "base.h"

INLINE i64 sign_extend(u64 v, u32 width) {
    return width == 0 ? 0 : (i64)(v << (64 - width)) >> (64 - width);
}

/* A shift by the width or more gives 0, or the sign (P4_16 specification, 8.6). */
INLINE u64 shift_left(u64 v, u64 by, u32 width) {
    return by >= width ? 0 : (v << by) & low_bits(width);
}
INLINE u64 shift_right(u64 v, u64 by, u32 width) { return by >= width ? 0 : v >> by; }
INLINE u64 shift_right_signed(u64 v, u64 by, u32 width) {
    return width == 0 ? 0
        : (u64)(sign_extend(v, width) >> (by >= width ? width - 1 : by)) & low_bits(width);
}

INLINE u64 add_saturating(u64 a, u64 b, u32 width) {
    u64 sum = a + b;
    return sum < a || sum > low_bits(width) ? low_bits(width) : sum;
}
INLINE u64 sub_saturating(u64 a, u64 b) { return a < b ? 0 : a - b; }

INLINE u64 clamp_signed(__int128 v, u32 width) {
    __int128 top = ((__int128)1 << (width - 1)) - 1;
    if (v > top) v = top;
    if (v < -top - 1) v = -top - 1;
    return (u64)v & low_bits(width);
}
INLINE u64 add_saturating_signed(u64 a, u64 b, u32 width) {
    if (width == 0) return 0;
    return clamp_signed((__int128)sign_extend(a, width) + sign_extend(b, width), width);
}
INLINE u64 sub_saturating_signed(u64 a, u64 b, u32 width) {
    if (width == 0) return 0;
    return clamp_signed((__int128)sign_extend(a, width) - sign_extend(b, width), width);
}

#endif
