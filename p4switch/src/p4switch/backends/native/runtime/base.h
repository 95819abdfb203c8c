/* Integer types, byte order and small helpers shared by the runtime and the generated code. */
#ifndef P4_BASE_H
#define P4_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#ifdef __OPTIMIZE__
#define INLINE static inline __attribute__((always_inline, unused))
#define UNUSED __attribute__((unused))
#else
/* gcc -O0 compiles static functions that nobody calls, unless they are declared inline. To inline
   those that are called takes it a fifth longer. */
#define INLINE static inline __attribute__((unused))
#define UNUSED inline __attribute__((unused))
#endif
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Number of 64-bit words for a number of bits. */
#define WORDS(bits) (((bits) + 63) / 64)

INLINE u64 low_bits(u32 width) { return width >= 64 ? ~0ull : (1ull << width) - 1; }

/* --- big-endian loads and stores of 1 to 8 bytes; src and dst need no alignment */

INLINE u16 load_be16(const u8 *src) { u16 v; memcpy(&v, src, 2); return __builtin_bswap16(v); }
INLINE u32 load_be32(const u8 *src) { u32 v; memcpy(&v, src, 4); return __builtin_bswap32(v); }
INLINE u64 load_be64(const u8 *src) { u64 v; memcpy(&v, src, 8); return __builtin_bswap64(v); }

INLINE void store_be16(u8 *dst, u16 v) { v = __builtin_bswap16(v); memcpy(dst, &v, 2); }
INLINE void store_be32(u8 *dst, u32 v) { v = __builtin_bswap32(v); memcpy(dst, &v, 4); }
INLINE void store_be64(u8 *dst, u64 v) { v = __builtin_bswap64(v); memcpy(dst, &v, 8); }

INLINE u64 load_be(const u8 *src, u32 bytes) {
    switch (bytes) {
    case 0: return 0;
    case 1: return src[0];
    case 2: return load_be16(src);
    case 3: return (u64)load_be16(src) << 8 | src[2];
    case 4: return load_be32(src);
    case 5: return (u64)load_be32(src) << 8 | src[4];
    case 6: return (u64)load_be32(src) << 16 | load_be16(src + 4);
    case 7: return (u64)load_be32(src) << 24 | (u64)load_be16(src + 4) << 8 | src[6];
    default: return load_be64(src);
    }
}

INLINE void store_be(u8 *dst, u64 v, u32 bytes) {
    switch (bytes) {
    case 0: return;
    case 1: dst[0] = (u8)v; return;
    case 2: store_be16(dst, (u16)v); return;
    case 3: store_be16(dst, (u16)(v >> 8)); dst[2] = (u8)v; return;
    case 4: store_be32(dst, (u32)v); return;
    case 5: store_be32(dst, (u32)(v >> 8)); dst[4] = (u8)v; return;
    case 6: store_be32(dst, (u32)(v >> 16)); store_be16(dst + 4, (u16)v); return;
    case 7: store_be32(dst, (u32)(v >> 24)); store_be16(dst + 4, (u16)(v >> 8));
            dst[6] = (u8)v; return;
    default: store_be64(dst, v); return;
    }
}

#endif
