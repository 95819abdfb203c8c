/* Integers of more than 64 bits: arrays of 64-bit words, least significant first.

   Bits above the width are zero. The generator writes loops of its own for sums, logic and
   constant shifts; here is what needs more. `n` is the number of words, `width` in bits.
   Destinations may be the same array as a source. */
#ifndef P4_WIDE_H
#define P4_WIDE_H

#include "base.h"
/* gcc's and clang's names of what <immintrin.h> wraps, whose 40,000 lines take longer to read than
   the rest of a program to compile. */
#ifdef __has_builtin
#if __has_builtin(__builtin_ia32_addcarryx_u64)
#define ADD_WITH_CARRY __builtin_ia32_addcarryx_u64
#endif
#if __has_builtin(__builtin_ia32_sbb_u64)
#define SUB_WITH_BORROW __builtin_ia32_sbb_u64
#elif __has_builtin(__builtin_ia32_subborrow_u64)
#define SUB_WITH_BORROW __builtin_ia32_subborrow_u64
#endif
#endif

/* a + b + carry in and out (0 or 1). */
INLINE u64 add_carry(u64 a, u64 b, u8 *carry) {
#ifdef ADD_WITH_CARRY
    unsigned long long sum;
    *carry = ADD_WITH_CARRY(*carry, a, b, &sum);
    return sum;
#else
    u64 part = a + b, sum = part + *carry;
    *carry = (part < a) | (sum < part);
    return sum;
#endif
}

INLINE u64 sub_borrow(u64 a, u64 b, u8 *borrow) {
#ifdef SUB_WITH_BORROW
    unsigned long long difference;
    *borrow = SUB_WITH_BORROW(*borrow, a, b, &difference);
    return difference;
#else
    u64 part = a - b, difference = part - *borrow;
    *borrow = (a < b) | (part < *borrow);
    return difference;
#endif
}

INLINE u64 wide_top_mask(u32 width) { return width % 64 ? low_bits(width % 64) : ~0ull; }

INLINE int wide_negative(const u64 *a, u32 width) {
    return (a[(width - 1) / 64] >> ((width - 1) % 64)) & 1;
}

UNUSED static int wide_less(const u64 *a, const u64 *b, u32 n) {
    for (u32 i = n; i-- > 0;)
        if (a[i] != b[i]) return a[i] < b[i];
    return 0;
}

UNUSED static int wide_less_signed(const u64 *a, const u64 *b, u32 n, u32 width) {
    int x = wide_negative(a, width), y = wide_negative(b, width);
    return x != y ? x : wide_less(a, b, n);
}

UNUSED static void wide_multiply(u64 *d, const u64 *a, const u64 *b, u32 n, u32 width) {
    u64 out[n];
    memset(out, 0, sizeof out);
    for (u32 i = 0; i < n; i++) {
        u64 carry = 0;
        for (u32 j = 0; i + j < n; j++) {
            unsigned __int128 t = (unsigned __int128)a[i] * b[j] + out[i + j] + carry;
            out[i + j] = (u64)t;
            carry = (u64)(t >> 64);
        }
    }
    out[n - 1] &= wide_top_mask(width);
    memcpy(d, out, sizeof out);
}

/* Shifts by less than the width. */
INLINE void wide_shift_left_by(u64 *d, const u64 *a, u32 n, u32 by) {
    u32 q = by / 64, r = by % 64;
    for (u32 i = n; i-- > 0;) {
        u64 high = i >= q ? a[i - q] : 0, low = i >= q + 1 ? a[i - q - 1] : 0;
        d[i] = r ? high << r | low >> (64 - r) : high;
    }
}
INLINE void wide_shift_right_by(u64 *d, const u64 *a, u32 n, u32 by) {
    u32 q = by / 64, r = by % 64;
    for (u32 i = 0; i < n; i++) {
        u64 low = i + q < n ? a[i + q] : 0, high = i + q + 1 < n ? a[i + q + 1] : 0;
        d[i] = r ? low >> r | high << (64 - r) : low;
    }
}

UNUSED static void wide_shift_left(u64 *d, const u64 *a, u32 n, u32 width, u64 by) {
    if (by >= width) { memset(d, 0, n * 8); return; }
    wide_shift_left_by(d, a, n, (u32)by);
    d[n - 1] &= wide_top_mask(width);
}
/* A value of one word, shifted left. Without branches, so that gcc vectorizes the loop. */
INLINE void wide_place(u64 *d, u64 value, u32 n, u32 width, u64 by) {
    u64 q = by / 64, r = by % 64, low = value << r, high = r ? value >> (64 - r) : 0;
    for (u32 i = 0; i < n; i++) d[i] = (i == q ? low : 0) | (i == q + 1 ? high : 0);
    d[n - 1] &= wide_top_mask(width);
}
UNUSED static void wide_shift_right(u64 *d, const u64 *a, u32 n, u32 width, u64 by) {
    if (by >= width) { memset(d, 0, n * 8); return; }
    wide_shift_right_by(d, a, n, (u32)by);
}

/* Sign-extends a value of `from` bits in place to `to` bits in `n` words. */
UNUSED static void wide_sign_extend(u64 *d, u32 from, u32 n, u32 to) {
    if (from && wide_negative(d, from)) {
        if (from % 64) d[from / 64] |= ~low_bits(from % 64);
        for (u32 i = WORDS(from); i < n; i++) d[i] = ~0ull;
    }
    d[n - 1] &= wide_top_mask(to);
}

UNUSED static void wide_shift_right_signed(u64 *d, const u64 *a, u32 n, u32 width, u64 by) {
    if (by >= width) by = width - 1;
    u64 out[n];
    wide_shift_right_by(out, a, n, (u32)by);
    if (wide_negative(a, width)) wide_sign_extend(out, width - (u32)by, n, width);
    memcpy(d, out, sizeof out);
}

/* Quotient and remainder by shift and subtract; both may be NULL. Not for a zero divisor. */
UNUSED static void wide_divide(u64 *q, u64 *r, const u64 *a, const u64 *b, u32 n) {
    u64 quotient[n], rest[n];
    memset(quotient, 0, sizeof quotient);
    memset(rest, 0, sizeof rest);
    for (u32 bit = n * 64; bit-- > 0;) {
        u64 top = rest[n - 1] >> 63;
        wide_shift_left_by(rest, rest, n, 1);
        rest[0] |= (a[bit / 64] >> (bit % 64)) & 1;
        if (top || !wide_less(rest, b, n)) {
            u8 borrow = 0;
            for (u32 i = 0; i < n; i++) rest[i] = sub_borrow(rest[i], b[i], &borrow);
            quotient[bit / 64] |= 1ull << (bit % 64);
        }
    }
    if (q) memcpy(q, quotient, sizeof quotient);
    if (r) memcpy(r, rest, sizeof rest);
}

INLINE void wide_smallest(u64 *d, u32 n, u32 width) {
    memset(d, 0, n * 8);
    d[n - 1] = 1ull << ((width - 1) % 64);
}
INLINE void wide_largest(u64 *d, u32 n, u32 width) {
    memset(d, 0xff, n * 8);
    d[n - 1] = low_bits(width - 1 - (n - 1) * 64);
}

UNUSED static void wide_add_saturating(u64 *d, const u64 *a, const u64 *b, u32 n, u32 width,
                                       int is_signed) {
    u64 out[n];
    u8 carry = 0;
    for (u32 i = 0; i < n; i++) out[i] = add_carry(a[i], b[i], &carry);
    int over = carry || (out[n - 1] & ~wide_top_mask(width));
    out[n - 1] &= wide_top_mask(width);
    if (is_signed) {
        int x = wide_negative(a, width), y = wide_negative(b, width);
        if (x == y && x != wide_negative(out, width)) {
            if (x) wide_smallest(out, n, width);
            else wide_largest(out, n, width);
        }
    } else if (over) {
        memset(out, 0xff, sizeof out);
        out[n - 1] = wide_top_mask(width);
    }
    memcpy(d, out, sizeof out);
}

UNUSED static void wide_sub_saturating(u64 *d, const u64 *a, const u64 *b, u32 n, u32 width,
                                       int is_signed) {
    u64 out[n];
    u8 borrow = 0;
    for (u32 i = 0; i < n; i++) out[i] = sub_borrow(a[i], b[i], &borrow);
    out[n - 1] &= wide_top_mask(width);
    if (is_signed) {
        int x = wide_negative(a, width), y = wide_negative(b, width);
        if (x != y && x != wide_negative(out, width)) {
            if (x) wide_smallest(out, n, width);
            else wide_largest(out, n, width);
        }
    } else if (borrow) {
        memset(out, 0, sizeof out);
    }
    memcpy(d, out, sizeof out);
}

/* d[low + width - 1 : low] = a; a has no bits above `width` and is another array. */
UNUSED static void wide_insert(u64 *d, u32 low, const u64 *a, u32 width) {
    for (u32 done = 0; done < width; done += 64) {
        u32 bits = width - done < 64 ? width - done : 64;
        u32 at = low + done, q = at / 64, r = at % 64;
        u64 mask = low_bits(bits), v = a[done / 64] & mask;
        d[q] = (d[q] & ~(mask << r)) | v << r;
        if (r + bits > 64) d[q + 1] = (d[q + 1] & ~(mask >> (64 - r))) | v >> (64 - r);
    }
}

/* The shift count of a wide right operand: itself, or something too large. */
UNUSED static u64 wide_count(const u64 *a, u32 n) {
    for (u32 i = 1; i < n; i++)
        if (a[i]) return ~0ull;
    return a[0];
}

#endif
