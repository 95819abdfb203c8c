/* Match-action tables: exact by hash, lpm by a hash with the prefix length in the key, all
   others by a scan in order of priority, over those rows only that an index of a few well chosen
   key bits leaves; tables with a key of few bits by a directly indexed array.

   A key is an array of 64-bit words; where each field lies in it is the generator's choice
   (KeyLayout), and the Python side packs entries the same way. An entry is known by its handle, a small
   number that the control plane chooses. */
#ifndef P4_TABLES_H
#define P4_TABLES_H

#include "base.h"
#include "meters.h"

enum { TABLE_EXACT, TABLE_LPM, TABLE_SCAN };
enum { ENTRY_ACTION, ENTRY_MEMBER, ENTRY_GROUP };

/* An action with its data, each argument from a 64-bit word of its own on. */
typedef struct { u32 action; u32 unused; u64 arguments[]; } choice;

typedef struct {
    u8 used, kind;             /* kind: ENTRY_... */
    u32 reference;             /* slot of the member or group */
    u64 packets, bytes;        /* direct counter */
    u64 last_hit;              /* microseconds */
    meter_cell meter;          /* direct meter */
    choice own;                /* last: its arguments follow */
} entry;

/* A key field of few bits, for the direct index. */
typedef struct { u8 width, word, shift; } key_part;

typedef struct {
    u8 kind;
    u8 direct_bits;            /* total key width if the table is indexed directly, else 0 */
    u16 words;                 /* of the key */
    u16 range_word;            /* words from here on hold range fields, `range_words` each */
    const u16 *range_words;
    u16 ranges;
    u16 arguments;             /* words of the largest action's data */
    u16 parts;
    const key_part *part;
} table_spec;

#define NO_ENTRY 0xffffffffu

typedef struct { u32 hash, handle; } hash_slot;
typedef struct { u64 rank; u32 handle; } scan_row;
typedef struct { u32 length, users; u64 *mask; } prefix;

#define INDEX_BITS 12
/* Tables of fewer rows are scanned without an index. */
#define INDEX_FROM 16
/* Row slots that an index may have for each row. */
#define INDEX_SLOTS 128
/* Scans whose work pays for making an index anew: whoever changes a table for every packet gets
   plain scans, and seldom an index in vain. */
#define INDEX_SCANS 256

/* For each value of some bits of the key the rows that can match, in order of rank. */
typedef struct {
    u8 valid, bits;
    u16 bit[INDEX_BITS];       /* 64 * word + shift */
    u32 *starts;               /* 1 << bits, and the end */
    u32 *rows;
    u32 scans;                 /* without the index, since it was last made */
} row_index;

typedef struct {
    const table_spec *spec;
    u32 stride;                /* bytes of an entry */
    u32 capacity;              /* entries there is room for */
    u32 count;
    u32 key_words;             /* words a stored key has: one more for lpm, the prefix length */
    u8 *entries;
    u64 *values, *masks;       /* key_words each; for ranges low and high */
    hash_slot *slots;          /* handle + 1, 0 is empty */
    u32 slot_mask;
    prefix *prefixes;          /* longest first */
    u32 prefix_count;
    scan_row *rows;            /* largest rank first; NO_ENTRY for those deleted */
    u64 *row_values, *row_masks; /* as `values`, in the order of the rows */
    u64 *ranks;                /* by handle */
    scan_row *fresh;           /* in order of arrival, not among the rows yet */
    u32 row_count, fresh_count;
    u8 unsettled;              /* rows are fresh or deleted: a search puts them in order first */
    u32 sequence;
    row_index index;
    u32 *direct;               /* handle + 1 */
    u8 direct_stale;
    entry *miss;               /* the default action */
} table;

INLINE entry *table_entry(const table *t, u32 handle) {
    return (entry *)(void *)(t->entries + (size_t)handle * t->stride);
}

INLINE u32 key_hash(const u64 *key, u32 words) {
    u64 h = 0x9e3779b97f4a7c15ull;
    for (u32 i = 0; i < words; i++) {
        h = (h ^ key[i]) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    return (u32)h;
}

INLINE u32 table_probe(const table *t, const u64 *key, u32 words) {
    u32 h = key_hash(key, words);
    for (u32 i = h & t->slot_mask; t->slots[i].handle; i = (i + 1) & t->slot_mask) {
        if (t->slots[i].hash != h) continue;
        u32 handle = t->slots[i].handle - 1, same = 1;
        const u64 *stored = t->values + (size_t)handle * words;
        for (u32 j = 0; j < words; j++) same &= stored[j] == key[j];
        if (same) return handle;
    }
    return NO_ENTRY;
}

INLINE u32 table_find_exact(const table *t, const u64 *key, u32 words) {
    return t->count ? table_probe(t, key, words) : NO_ENTRY;
}

INLINE u32 table_find_lpm(const table *t, const u64 *key, u32 words) {
    for (u32 p = 0; p < t->prefix_count; p++) {
        u64 masked[words + 1];
        for (u32 i = 0; i < words; i++) masked[i] = key[i] & t->prefixes[p].mask[i];
        masked[words] = t->prefixes[p].length;
        u32 handle = table_probe(t, masked, words + 1);
        if (handle != NO_ENTRY) return handle;
    }
    return NO_ENTRY;
}

INLINE int ranges_hold(const table_spec *spec, const u64 *key, const u64 *low, const u64 *high) {
    u32 w = spec->range_word;
    for (u32 r = 0; r < spec->ranges; r++) {
        u32 n = spec->range_words[r], i;
        for (i = n; i-- > 0 && key[w + i] == low[w + i];) {}
        if (i != ~0u && key[w + i] < low[w + i]) return 0;
        for (i = n; i-- > 0 && key[w + i] == high[w + i];) {}
        if (i != ~0u && key[w + i] > high[w + i]) return 0;
        w += n;
    }
    return 1;
}

/* Whether a row's entry can match keys with bit `bit` zero (1), one (2), or both (3). */
INLINE u32 row_bit(const table *t, u32 row, u32 bit) {
    size_t at = (size_t)row * t->key_words + bit / 64;
    if (!(t->row_masks[at] >> bit % 64 & 1)) return 3;
    return t->row_values[at] >> bit % 64 & 1 ? 2 : 1;
}

/* Choose bits that divide the rows well: the more rows have either value of a bit, the better. */
UNUSED static void index_choose(table *t) {
    row_index *x = &t->index;
    u32 bits = (u32)t->spec->range_word * 64, score[INDEX_BITS];
    x->bits = 0;
    for (u32 bit = 0; bit < bits; bit++) {
        u32 zeros = 0, ones = 0;
        for (u32 row = 0; row < t->count; row++) {
            u32 can = row_bit(t, row, bit);
            zeros += can == 1;
            ones += can == 2;
        }
        u32 good = 4 * (zeros < ones ? zeros : ones) + (zeros < ones ? ones : zeros) / 4, at;
        if (!(zeros && ones)) continue;
        if (x->bits == INDEX_BITS && good <= score[INDEX_BITS - 1]) continue;
        if (x->bits < INDEX_BITS) x->bits++;
        for (at = x->bits - 1u; at > 0 && score[at - 1] < good; at--) {
            score[at] = score[at - 1];
            x->bit[at] = x->bit[at - 1];
        }
        score[at] = good;
        x->bit[at] = (u16)bit;
    }
    /* As many of them as there is room for the rows that do not care. */
    u64 room = (u64)INDEX_SLOTS * t->count;
    while (x->bits) {
        u64 slots = 0;
        for (u32 row = 0; row < t->count; row++) {
            u32 open = 0;
            for (u32 i = 0; i < x->bits; i++) open += row_bit(t, row, x->bit[i]) == 3;
            slots += 1ull << open;
        }
        if (slots <= room && 1u << x->bits <= 4 * t->count) break;
        x->bits--;
    }
}

/* Visit the places of the index where a row belongs: count them, or fill them. */
INLINE void index_place(const table *t, u32 row, u32 *counts, u32 *rows) {
    const row_index *x = &t->index;
    u32 fixed = 0, open = 0;
    for (u32 i = 0; i < x->bits; i++) {
        u32 can = row_bit(t, row, x->bit[i]);
        if (can == 3) open |= 1u << i;
        else fixed |= (can >> 1) << i;
    }
    for (u32 choice = open;; choice = (choice - 1) & open) {
        u32 at = counts[fixed | choice]++;
        if (rows) rows[at] = row;
        if (!choice) break;
    }
}

/* Make the index anew. Without memory, or bits to choose, it stays invalid: rows are scanned. */
UNUSED static void __attribute__((noinline)) index_make(table *t) {
    row_index *x = &t->index;
    x->scans = 0;
    index_choose(t);
    if (!x->bits) return;
    u32 size = 1u << x->bits;
    u32 *starts = calloc(2 * (size_t)size + 1, sizeof *starts);
    if (!starts) return;
    u32 *next = starts + size + 1;
    for (u32 row = 0; row < t->count; row++) index_place(t, row, next, NULL);
    for (u32 i = 0; i < size; i++) {
        starts[i + 1] = starts[i] + next[i];
        next[i] = starts[i];
    }
    u32 *rows = malloc(((size_t)starts[size] | 1) * sizeof *rows);
    if (!rows) {
        free(starts);
        return;
    }
    for (u32 row = 0; row < t->count; row++) index_place(t, row, next, rows);
    free(x->starts);
    free(x->rows);
    x->starts = starts;
    x->rows = rows;
    x->valid = 1;
}

INLINE int row_holds(const table *t, u32 row, const u64 *key, u32 words, u32 masked, int ranges) {
    const u64 *value = t->row_values + (size_t)row * words;
    const u64 *mask = t->row_masks + (size_t)row * words;
    u64 differs = 0;
    for (u32 i = 0; i < masked; i++) differs |= (key[i] & mask[i]) ^ value[i];
    return !differs && (!ranges || ranges_hold(t->spec, key, value, mask));
}

UNUSED static void rows_move(table *t, u32 to, u32 from, u32 count) {
    size_t size = t->key_words * 8;
    memmove(t->rows + to, t->rows + from, count * sizeof *t->rows);
    memmove((u8 *)t->row_values + to * size, (u8 *)t->row_values + from * size, count * size);
    memmove((u8 *)t->row_masks + to * size, (u8 *)t->row_masks + from * size, count * size);
}

/* The first of the rows before `end` whose rank is at most this. */
UNUSED static u32 rows_find(const table *t, u64 rank, u32 end) {
    u32 at = 0;
    while (at < end) {
        u32 middle = (at + end) / 2;
        if (t->rows[middle].rank > rank) at = middle + 1;
        else end = middle;
    }
    return at;
}

UNUSED static int rank_descends(const void *a, const void *b) {
    u64 x = ((const scan_row *)a)->rank, y = ((const scan_row *)b)->rank;
    return (x < y) - (x > y);
}

/* Remove deleted rows and merge the fresh ones in: one pass for however many changes. */
UNUSED static void __attribute__((noinline)) rows_settle(table *t) {
    size_t size = t->key_words * 8;
    u32 end = 0;
    for (u32 row = 0; row < t->row_count; row++) {
        if (t->rows[row].handle == NO_ENTRY) continue;
        if (end != row) rows_move(t, end, row, 1);
        end++;
    }
    qsort(t->fresh, t->fresh_count, sizeof *t->fresh, rank_descends);
    for (u32 left = t->fresh_count; left;) {
        scan_row row = t->fresh[left - 1];
        u32 at = rows_find(t, row.rank, end);
        rows_move(t, at + left, at, end - at);
        end = at;
        at += --left;
        t->rows[at] = row;
        memcpy((u8 *)t->row_values + at * size, (u8 *)t->values + row.handle * size, size);
        memcpy((u8 *)t->row_masks + at * size, (u8 *)t->masks + row.handle * size, size);
    }
    t->row_count = t->count;
    t->fresh_count = 0;
    t->unsettled = 0;
}

INLINE u32 table_find_scan(table *t, const u64 *key, u32 words, u32 masked, int ranges) {
    row_index *x = &t->index;
    if (UNLIKELY(t->unsettled)) rows_settle(t);
    if (t->count >= INDEX_FROM) {
        if (UNLIKELY(!x->valid) && ++x->scans >= INDEX_SCANS) index_make(t);
        if (LIKELY(x->valid)) {
            u32 at = 0;
            for (u32 i = 0; i < x->bits; i++)
                at |= (u32)(key[x->bit[i] / 64] >> x->bit[i] % 64 & 1) << i;
            for (u32 i = x->starts[at]; i < x->starts[at + 1]; i++)
                if (row_holds(t, x->rows[i], key, words, masked, ranges))
                    return t->rows[x->rows[i]].handle;
            return NO_ENTRY;
        }
    }
    const u64 *value = t->row_values, *mask = t->row_masks;
    for (u32 row = 0; row < t->count; row++, value += words, mask += words) {
        u64 differs = 0;
        for (u32 i = 0; i < masked; i++) differs |= (key[i] & mask[i]) ^ value[i];
        if (!differs && (!ranges || ranges_hold(t->spec, key, value, mask)))
            return t->rows[row].handle;
    }
    return NO_ENTRY;
}

UNUSED static u32 table_search(table *t, const u64 *key) {
    const table_spec *s = t->spec;
    switch (s->kind) {
    case TABLE_EXACT: return table_find_exact(t, key, s->words);
    case TABLE_LPM: return table_find_lpm(t, key, s->words);
    default: return table_find_scan(t, key, s->words, s->range_word, s->ranges != 0);
    }
}

UNUSED static void __attribute__((noinline)) table_refresh_direct(table *t) {
    const table_spec *s = t->spec;
    for (u32 index = 0; index < 1u << s->direct_bits; index++) {
        u64 key[s->words + 1];
        u32 rest = index;
        memset(key, 0, sizeof key);
        for (u32 p = 0; p < s->parts; p++) {
            key[s->part[p].word] |= (u64)(rest & (u32)low_bits(s->part[p].width))
                << s->part[p].shift;
            rest >>= s->part[p].width;
        }
        t->direct[index] = table_search(t, key) + 1;
    }
    t->direct_stale = 0;
}

INLINE u32 table_find_direct(table *t, u32 index) {
    if (UNLIKELY(t->direct_stale)) table_refresh_direct(t);
    return t->direct[index] - 1;
}

/* --- control plane. 0 is success, -1 is no memory. */

UNUSED static void slots_add(table *t, u32 handle) {
    u32 h = key_hash(t->values + (size_t)handle * t->key_words, t->key_words);
    u32 i = h & t->slot_mask;
    while (t->slots[i].handle) i = (i + 1) & t->slot_mask;
    t->slots[i] = (hash_slot){h, handle + 1};
}

/* Removes by shifting later members of the cluster back. */
UNUSED static void slots_remove(table *t, u32 handle) {
    u32 h = key_hash(t->values + (size_t)handle * t->key_words, t->key_words);
    u32 hole = h & t->slot_mask;
    while (t->slots[hole].handle != handle + 1) hole = (hole + 1) & t->slot_mask;
    for (u32 i = (hole + 1) & t->slot_mask; t->slots[i].handle; i = (i + 1) & t->slot_mask) {
        u32 home = t->slots[i].hash & t->slot_mask;
        if (((i - home) & t->slot_mask) >= ((i - hole) & t->slot_mask)) {
            t->slots[hole] = t->slots[i];
            hole = i;
        }
    }
    t->slots[hole].handle = 0;
}

UNUSED static int slots_reserve(table *t, u32 count) {
    if (t->slots && count * 2 <= t->slot_mask) return 0;
    u32 size = 16;
    while (size < count * 4) size *= 2;
    hash_slot *fresh = calloc(size, sizeof *fresh);
    if (!fresh) return -1;
    hash_slot *old = t->slots;
    u32 old_size = old ? t->slot_mask + 1 : 0;
    t->slots = fresh;
    t->slot_mask = size - 1;
    for (u32 i = 0; i < old_size; i++) if (old[i].handle) {
        u32 at = old[i].hash & t->slot_mask;
        while (fresh[at].handle) at = (at + 1) & t->slot_mask;
        fresh[at] = old[i];
    }
    free(old);
    return 0;
}

UNUSED static int grow(void *array, size_t old_count, size_t count, size_t size) {
    void **place = array;
    void *bigger = realloc(*place, (count * size) | 1);
    if (!bigger) return -1;
    memset((u8 *)bigger + old_count * size, 0, (count - old_count) * size);
    *place = bigger;
    return 0;
}

UNUSED static int table_reserve(table *t, u32 handle) {
    if (handle < t->capacity) return 0;
    u32 wanted = t->capacity ? t->capacity : 16;
    while (wanted <= handle) wanted *= 2;
    size_t old = t->capacity, words = t->key_words;
    if (grow(&t->entries, old, wanted, t->stride) || grow(&t->values, old, wanted, words * 8)
        || grow(&t->masks, old, wanted, words * 8)) return -1;
    if (t->spec->kind == TABLE_SCAN
        && (grow(&t->rows, old, wanted, sizeof *t->rows)
            || grow(&t->fresh, old, wanted, sizeof *t->fresh)
            || grow(&t->ranks, old, wanted, sizeof *t->ranks)
            || grow(&t->row_values, old, wanted, words * 8)
            || grow(&t->row_masks, old, wanted, words * 8))) return -1;
    t->capacity = wanted;
    return 0;
}

UNUSED static int prefix_add(table *t, u32 length, const u64 *mask) {
    u32 at = 0, words = t->spec->words;
    while (at < t->prefix_count && t->prefixes[at].length > length) at++;
    if (at < t->prefix_count && t->prefixes[at].length == length) {
        t->prefixes[at].users++;
        return 0;
    }
    u64 *copy = malloc(words * 8 | 1);
    if (!copy || grow(&t->prefixes, t->prefix_count, t->prefix_count + 1, sizeof *t->prefixes)) {
        free(copy);
        return -1;
    }
    memcpy(copy, mask, words * 8);
    memmove(t->prefixes + at + 1, t->prefixes + at, (t->prefix_count - at) * sizeof *t->prefixes);
    t->prefixes[at] = (prefix){length, 1, copy};
    t->prefix_count++;
    return 0;
}

UNUSED static void prefix_remove(table *t, u32 length) {
    u32 at = 0;
    while (t->prefixes[at].length != length) at++;
    if (--t->prefixes[at].users) return;
    free(t->prefixes[at].mask);
    t->prefix_count--;
    memmove(t->prefixes + at, t->prefixes + at + 1, (t->prefix_count - at) * sizeof *t->prefixes);
}

UNUSED static void entry_set_action(const table *t, entry *e, u32 kind, u32 reference, u32 action,
                                    const u64 *arguments) {
    e->kind = (u8)kind;
    e->reference = reference;
    e->own.action = action;
    memcpy(e->own.arguments, arguments, t->spec->arguments * 8u);
}

/* `key` has key_words words, masked; `mask` too (high bounds where ranges are). */
UNUSED static int table_insert(table *t, u32 handle, const u64 *key, const u64 *mask,
                               u32 priority) {
    size_t words = t->key_words;
    if (table_reserve(t, handle)) return -1;
    if (t->spec->kind != TABLE_SCAN && slots_reserve(t, t->count + 1)) return -1;
    if (t->spec->kind == TABLE_LPM && prefix_add(t, (u32)key[words - 1], mask)) return -1;
    entry *e = table_entry(t, handle);
    memset(e, 0, t->stride);
    e->used = 1;
    memcpy(t->values + handle * words, key, words * 8);
    memcpy(t->masks + handle * words, mask, words * 8);
    if (t->spec->kind == TABLE_SCAN) {
        /* Of equal priorities the entry that came first wins. */
        u64 rank = (u64)priority << 32 | (0xffffffffu - t->sequence++);
        if (t->row_count + t->fresh_count == t->capacity) rows_settle(t);
        t->ranks[handle] = rank;
        t->fresh[t->fresh_count++] = (scan_row){rank, handle};
        t->unsettled = 1;
    } else {
        slots_add(t, handle);
    }
    t->count++;
    t->direct_stale = 1;
    t->index.valid = 0;
    return 0;
}

UNUSED static void table_delete(table *t, u32 handle) {
    if (t->spec->kind == TABLE_SCAN) {
        if (t->fresh_count && t->fresh[t->fresh_count - 1].handle == handle) {
            t->fresh_count--;
        } else {
            u64 rank = t->ranks[handle];
            u32 at = rows_find(t, rank, t->row_count);
            if (at == t->row_count || t->rows[at].rank != rank) {
                rows_settle(t);
                at = rows_find(t, rank, t->row_count);
            }
            t->rows[at].handle = NO_ENTRY;
        }
        t->unsettled = 1;
    } else {
        slots_remove(t, handle);
        if (t->spec->kind == TABLE_LPM)
            prefix_remove(t, (u32)t->values[(size_t)handle * t->key_words + t->key_words - 1]);
    }
    table_entry(t, handle)->used = 0;
    t->count--;
    t->direct_stale = 1;
    t->index.valid = 0;
}

UNUSED static int table_create(table *t, const table_spec *spec) {
    memset(t, 0, sizeof *t);
    t->spec = spec;
    t->key_words = spec->words + (spec->kind == TABLE_LPM);
    t->stride = (u32)(sizeof(entry) + spec->arguments * 8u);
    t->direct_stale = 1;
    t->miss = calloc(1, t->stride);
    if (spec->direct_bits) t->direct = calloc(1u << spec->direct_bits, sizeof *t->direct);
    return t->miss && (t->direct || !spec->direct_bits) ? 0 : -1;
}

UNUSED static void table_destroy(table *t) {
    for (u32 i = 0; i < t->prefix_count; i++) free(t->prefixes[i].mask);
    free(t->prefixes);
    free(t->entries); free(t->values); free(t->masks); free(t->slots);
    free(t->index.starts); free(t->index.rows);
    free(t->rows); free(t->row_values); free(t->row_masks); free(t->ranks); free(t->fresh);
    free(t->direct); free(t->miss);
}

/* --- action profiles: members, and groups that list members */

typedef struct { u32 count; u32 *members; } member_group;

typedef struct {
    u32 stride;                /* bytes of a member */
    u32 member_capacity, group_capacity;
    u8 *members;
    member_group *groups;
} profile;

INLINE choice *profile_member(const profile *p, u32 slot) {
    return (choice *)(void *)(p->members + (size_t)slot * p->stride);
}

#endif
