/* What the program's functions call: the deparser's room, externs' helpers. */
#ifndef P4_ACTIONS_H
#define P4_ACTIONS_H

#include "hashes.h"
#include "switch.h"
#include "wire.h"

/* Where to write `bits` more bits of the frame in the making; NULL without memory.

   Where cursors may stand inside a byte, new bytes are zero, so that put_bits leaves no rubbish. */
INLINE u8 *emit_room(p4_switch *sw, u32 bits) {
    output *o = sw->out;
    size_t at = sw->emit_start + sw->emitted / 8, end = at + (sw->emitted % 8 + bits + 7) / 8;
    o->used = at;
    if (UNLIKELY(output_room(o, end - at))) return NULL;
#if !ALIGNED
    size_t fresh = sw->emit_start + (sw->emitted + 7) / 8;
    memset(o->bytes + fresh, 0, end - fresh);
#endif
    return o->bytes + at;
}

/* `truncate(length)`; of several calls the smallest counts. */
INLINE void packet_limit(packet *p, u32 length) {
    if (!p->truncates || length < p->truncate_to) p->truncate_to = length;
    p->truncates = 1;
}

/* SplitMix64: the same numbers as the interpreter's for one seed (v1model/externs.py). */
INLINE u64 random_next(u64 *state) {
    u64 z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* A number in low..high; `low` if the range is empty. */
INLINE u64 random_between(u64 *state, u64 low, u64 high) {
    if (low > high) return low;
    u64 number = random_next(state), count = high - low + 1;
    return low + (count ? number % count : number);
}

/* Bytes that the parser left, from the next whole byte on. */
INLINE u32 payload_length(const packet *p) { return p->length - (p->cursor + 7) / 8; }

/* The bytes with the payload behind them; valid until the next call. */
UNUSED static const u8 *with_payload(p4_switch *sw, const packet *p, const u8 *bytes, u32 length) {
    u32 payload = payload_length(p);
    sw->scratch.used = 0;
    if (output_room(&sw->scratch, (size_t)length + payload)) {
        sw->out_of_memory = 1;
        return p->data;        /* has at least the payload; the result is worthless */
    }
    memcpy(sw->scratch.bytes, bytes, length);
    if (payload) memcpy(sw->scratch.bytes + length, p->data + p->length - payload, payload);
    return sw->scratch.bytes;
}

/* A varbit's value as words, least significant first. */
UNUSED static void varbit_words(u64 *d, u32 n, const void *source) {
    const varbit_view *v = source;
    memset(d, 0, n * 8);
    for (u32 i = 0; i < v->width; i++) {
        u32 at = v->width - 1 - i;
        d[i / 64] |= (u64)(v->bytes[at / 8] >> (7 - at % 8) & 1) << (i % 64);
    }
}

/* Rows of a value set: low, high, value and mask of each key word. */
UNUSED static int value_set_has(const value_set *set, const u64 *key, u32 words) {
    for (u32 row = 0; row < set->count; row++) {
        const u64 *r = set->rows + (size_t)row * 4 * words;
        int same = 1;
        for (u32 i = 0; i < words && same; i++)
            same = key[i] >= r[4 * i] && key[i] <= r[4 * i + 1]
                && (key[i] & r[4 * i + 3]) == r[4 * i + 2];
        if (same) return 1;
    }
    return 0;
}

#endif
