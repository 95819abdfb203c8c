/* Two-rate three-colour meters, as v1model/meters.py has them: two token buckets, filled since

   clock 0. The peak bucket is asked first; a red packet takes nothing from the committed one. */
#ifndef P4_METERS_H
#define P4_METERS_H

#include "base.h"

enum { METER_GREEN, METER_YELLOW, METER_RED };

typedef struct {
    i64 rate, burst;           /* units a second, units */
    i64 tokens, given;         /* in the bucket; put in since clock 0 */
} meter_bucket;

typedef struct {
    u8 configured;
    meter_bucket committed, peak;
} meter_cell;

INLINE int bucket_take(meter_bucket *b, u32 amount, u64 now) {
    i64 given = (i64)((unsigned __int128)now * (u64)b->rate / 1000000);
    i64 tokens = b->tokens + given - b->given;
    b->tokens = tokens < b->burst ? tokens : b->burst;
    b->given = given;
    if (b->tokens < (i64)amount) return 0;
    b->tokens -= amount;
    return 1;
}

UNUSED static u32 meter_execute(meter_cell *m, u32 amount, u64 now) {
    if (!m->configured) return METER_GREEN;
    if (!bucket_take(&m->peak, amount, now)) return METER_RED;
    return bucket_take(&m->committed, amount, now) ? METER_GREEN : METER_YELLOW;
}

/* The same for a packet that had a colour, which becomes no better (RFC 2698, colour-aware mode). */
UNUSED static u32 meter_execute_aware(meter_cell *m, u32 amount, u64 now, u32 color) {
    if (!m->configured) return color;
    if (color == METER_GREEN) return meter_execute(m, amount, now);
    if (color == METER_RED || !bucket_take(&m->peak, amount, now)) return METER_RED;
    return METER_YELLOW;
}

UNUSED static void meter_configure(meter_cell *m, const i64 *rates) {
    memset(m, 0, sizeof *m);
    if (!rates) return;
    m->configured = 1;
    m->committed = (meter_bucket){rates[0], rates[1], rates[1], 0};
    m->peak = (meter_bucket){rates[2], rates[3], rates[3], 0};
}

#endif
