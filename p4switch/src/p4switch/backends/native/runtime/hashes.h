/* The hash algorithms of v1model (BMv2's src/bm_sim/calculations.cpp), over whole bytes. */
#ifndef P4_HASHES_H
#define P4_HASHES_H

#include "base.h"

/* Tables of the reflected polynomials: 0xEDB88320 and 0xA001. */
static u32 crc32_table[256];
static u16 crc16_table[256];

/* Idempotent, so that several threads may do it at once. */
UNUSED static void hashes_start(void) {
    for (u32 i = 0; i < 256; i++) {
        u32 wide = i, narrow = i;
        for (int bit = 0; bit < 8; bit++) {
            wide = wide >> 1 ^ (wide & 1 ? 0xedb88320u : 0);
            narrow = narrow >> 1 ^ (narrow & 1 ? 0xa001u : 0);
        }
        crc32_table[i] = wide;
        crc16_table[i] = (u16)narrow;
    }
}

UNUSED static u64 hash_crc32(const u8 *bytes, size_t n) {
    u32 crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) crc = crc >> 8 ^ crc32_table[(crc ^ bytes[i]) & 0xff];
    return crc ^ 0xffffffffu;
}

UNUSED static u64 hash_crc16(const u8 *bytes, size_t n) {
    u16 crc = 0;
    for (size_t i = 0; i < n; i++) crc = (u16)(crc >> 8 ^ crc16_table[(crc ^ bytes[i]) & 0xff]);
    return crc;
}

/* A CRC whose parameters the control plane sets, of 16 or 32 bits. */
typedef struct {
    u32 table[256];
    u32 width, initial, final_xor, reflect_data, reflect_remainder;
} custom_crc;

UNUSED static u32 reflected(u32 value, u32 width) {
    u32 result = 0;
    for (u32 i = 0; i < width; i++) result |= (value >> i & 1) << (width - 1 - i);
    return result;
}

UNUSED static void crc_set(custom_crc *c, u32 width, u32 polynomial, u32 initial, u32 final_xor,
                           u32 reflect_data, u32 reflect_remainder) {
    u32 top = 1u << (width - 1), mask = top | (top - 1);
    for (u32 i = 0; i < 256; i++) {
        u32 remainder = i << (width - 8);
        for (int bit = 0; bit < 8; bit++)
            remainder = remainder << 1 ^ (remainder & top ? polynomial : 0);
        c->table[i] = remainder & mask;
    }
    c->width = width;
    c->initial = initial;
    c->final_xor = final_xor;
    c->reflect_data = reflect_data;
    c->reflect_remainder = reflect_remainder;
}

UNUSED static u64 crc_custom(const custom_crc *c, const u8 *bytes, size_t n) {
    u32 top = 1u << (c->width - 1), mask = top | (top - 1), remainder = c->initial;
    for (size_t i = 0; i < n; i++) {
        u32 byte = c->reflect_data ? reflected(bytes[i], 8) : bytes[i];
        remainder = (c->table[byte ^ remainder >> (c->width - 8)] ^ remainder << 8) & mask;
    }
    if (c->reflect_remainder) remainder = reflected(remainder, c->width);
    return remainder ^ c->final_xor;
}

/* The Internet checksum; `sum` carries on from an even number of bytes. */
INLINE u64 sum16(u64 sum, const u8 *bytes, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        u64 v = load_be64(bytes + i);
        sum += (v >> 32) + (v & 0xffffffffu);
    }
    for (; i + 2 <= n; i += 2) sum += load_be16(bytes + i);
    if (i < n) sum += (u64)bytes[i] << 8;
    return sum;
}
INLINE u64 fold16(u64 sum) {
    while (sum >> 16) sum = (sum >> 16) + (sum & 0xffff);
    return ~sum & 0xffff;
}
UNUSED static u64 hash_csum16(const u8 *bytes, size_t n) { return fold16(sum16(0, bytes, n)); }

UNUSED static u64 hash_xor16(const u8 *bytes, size_t n) {
    u64 x = 0;
    for (size_t i = 0; i < n; i++) x ^= (u64)bytes[i] << (i % 2 ? 0 : 8);
    return x;
}

/* The first eight bytes as a number. */
UNUSED static u64 hash_identity(const u8 *bytes, size_t n) {
    return load_be(bytes, n < 8 ? (u32)n : 8);
}

#endif
