/* Fields to and from packets: any bit offset, most significant bit first. */
#ifndef P4_WIRE_H
#define P4_WIRE_H

#include "base.h"

/* A varbit: `width` bits, the first one on the wire is the top bit of bytes[0]. Bits beyond the
   width are zero. The generated types have this shape with their own array size. */
typedef struct { u32 width; u8 bytes[]; } varbit_view;

/* Up to 64 bits at bit offset `at`; reads only the bytes that hold them. */
UNUSED static u64 get_bits(const u8 *src, u32 at, u32 width) {
    u64 v = 0;
    src += at / 8;
    at %= 8;
    while (width) {
        u32 bits = 8 - at < width ? 8 - at : width;
        v = v << bits | ((u64)(*src++ >> (8 - at - bits)) & low_bits(bits));
        width -= bits;
        at = 0;
    }
    return v;
}

/* Writes only those bits. */
UNUSED static void put_bits(u8 *dst, u32 at, u32 width, u64 v) {
    dst += at / 8;
    at %= 8;
    while (width) {
        u32 bits = 8 - at < width ? 8 - at : width, shift = 8 - at - bits;
        u8 mask = (u8)(low_bits(bits) << shift);
        *dst = (u8)((*dst & ~mask) | ((v >> (width - bits)) << shift & mask));
        dst++;
        width -= bits;
        at = 0;
    }
}

/* A wide value of `width` bits. */
INLINE void get_wide(u64 *d, const u8 *src, u32 at, u32 width) {
    if (at % 8 == 0 && width % 8 == 0) {
        const u8 *end = src + (at + width) / 8;
        u32 whole = width / 64;
        for (u32 i = 0; i < whole; i++) d[i] = load_be64(end - 8 * (i + 1));
        if (width % 64) {
            end -= 8 * whole;
            d[whole] = load_be(end - width % 64 / 8, width % 64 / 8);
        }
        return;
    }
    u32 end = at + width, i = 0;
    for (; width >= 64; width -= 64, end -= 64) d[i++] = get_bits(src, end - 64, 64);
    if (width) d[i] = get_bits(src, end - width, width);
}

INLINE void put_wide(u8 *dst, u32 at, u32 width, const u64 *a) {
    if (at % 8 == 0 && width % 8 == 0) {
        u8 *end = dst + (at + width) / 8;
        u32 whole = width / 64;
        for (u32 i = 0; i < whole; i++) store_be64(end - 8 * (i + 1), a[i]);
        if (width % 64) {
            end -= 8 * whole;
            store_be(end - width % 64 / 8, a[whole], width % 64 / 8);
        }
        return;
    }
    u32 end = at + width, i = 0;
    for (; width >= 64; width -= 64, end -= 64) put_bits(dst, end - 64, 64, a[i++]);
    if (width) put_bits(dst, end - width, width, a[i]);
}

UNUSED static void get_varbit(void *target, u32 max_bytes, const u8 *src, u32 at, u32 width) {
    varbit_view *v = target;
    v->width = width;
    memset(v->bytes, 0, max_bytes);
    for (u32 done = 0; done < width; done += 8) {
        u32 bits = width - done < 8 ? width - done : 8;
        v->bytes[done / 8] = (u8)(get_bits(src, at + done, bits) << (8 - bits));
    }
}

UNUSED static void put_varbit(u8 *dst, u32 at, const void *source) {
    const varbit_view *v = source;
    for (u32 done = 0; done < v->width; done += 8) {
        u32 bits = v->width - done < 8 ? v->width - done : 8;
        put_bits(dst, at + done, bits, v->bytes[done / 8] >> (8 - bits));
    }
}

/* Runs of equal byte-aligned fields. */
INLINE void get_run8(u8 *d, const u8 *src, u32 n) { memcpy(d, src, n); }
INLINE void get_run16(u16 *d, const u8 *src, u32 n) {
    for (u32 i = 0; i < n; i++) d[i] = load_be16(src + 2 * i);
}
INLINE void get_run32(u32 *d, const u8 *src, u32 n) {
    for (u32 i = 0; i < n; i++) d[i] = load_be32(src + 4 * i);
}
INLINE void get_run64(u64 *d, const u8 *src, u32 n) {
    for (u32 i = 0; i < n; i++) d[i] = load_be64(src + 8 * i);
}
INLINE void put_run8(u8 *dst, const u8 *a, u32 n) { memcpy(dst, a, n); }
INLINE void put_run16(u8 *dst, const u16 *a, u32 n) {
    for (u32 i = 0; i < n; i++) store_be16(dst + 2 * i, a[i]);
}
INLINE void put_run32(u8 *dst, const u32 *a, u32 n) {
    for (u32 i = 0; i < n; i++) store_be32(dst + 4 * i, a[i]);
}
INLINE void put_run64(u8 *dst, const u64 *a, u32 n) {
    for (u32 i = 0; i < n; i++) store_be64(dst + 8 * i, a[i]);
}

#endif
