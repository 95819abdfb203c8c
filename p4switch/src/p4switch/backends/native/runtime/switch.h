/* The state of one switch. The generated text before this file defines meta_t, std_t, headers_t,
   frame, registers and the counts; that after it the program's functions. */
#ifndef P4_SWITCH_H
#define P4_SWITCH_H

#include <pthread.h>
#include <stdatomic.h>

#include "base.h"
#include "tables.h"

#define PORTS 512
#define LARGEST_PRIORITIES 8
#define CLONE_SESSIONS 32768
#define GROUPS 65536

/* BMv2's PktInstanceType (targets/simple_switch/simple_switch.h). */
enum {
    INSTANCE_NORMAL = 0, INSTANCE_INGRESS_CLONE = 1, INSTANCE_EGRESS_CLONE = 2,
    INSTANCE_RECIRC = 4, INSTANCE_REPLICATION = 5, INSTANCE_RESUBMIT = 6
};

/* Bytes that several packets share. */
typedef struct { u32 users, size; u8 bytes[]; } buffer;

/* What a packet that came in and all that was made of it have cost, from its first copy on. */
typedef struct family { struct family *next; u32 users, steps; } family;

typedef struct packet {
    struct packet *next;
    buffer *owner;             /* of `data`; NULL where the caller of the batch owns them */
    const u8 *data;            /* as ingress parses them */
    u32 length;
    u32 cursor;                /* bits that the parser took */
    u32 input_length;          /* bytes at ingress: what counters and meters count */
    u32 current_length;        /* BMv2's packet length register: follows setValid, setInvalid */
    u32 truncate_to;           /* bytes, when `truncates` */
#if COUNTS_STEPS
    u32 steps;                 /* what it has cost, while it has no `family` */
    family *family;
    u8 spent;                  /* it has no steps left */
#endif
    u64 enqueued;              /* microseconds */
    u64 leaves;                /* nanoseconds: not before, where its queue has a rate */
    u32 parser_error;
    u32 clone_session;
    u16 clone_list, resubmit_list, recirculate_list;
    u8 truncates, clones, resubmits, recirculates, checksum_error;
    std_t std;
    meta_t meta;
    headers_t headers;
} packet;

typedef struct { packet *first, **last; u32 count; } queue;

typedef struct { u16 port, instance; } replica;
typedef struct { u32 count, length, class_of_service; replica replicas[]; } replication;

typedef struct { u64 packets, bytes; } counter_cell;

/* Frames one behind the other. */
typedef struct {
    u8 *bytes;
    size_t used, room;
    u32 count, frame_room;
    u64 *offsets;
    u32 *lengths;
    u16 *ports;
} output;

/* Records of 64-bit words that Python takes: number of words, identity, words. */
typedef struct { u64 *words; size_t used, room; u64 lost; } record_log;

typedef struct {
    u32 drop_port, queue_depth, priorities;
    u64 seed;
    u32 logs;                  /* whether log_msg is recorded */
} switch_options;

typedef struct { u32 count; u64 *rows; } value_set;

typedef struct {
    u64 queue_drops, parser_errors, failed_assertions, over_budget;
} switch_statistics;

struct packet_loop;

typedef struct p4_switch {
    frame *frame;
    registers registers;
    table tables[TABLE_COUNT + 1];
    profile profiles[PROFILE_COUNT + 1];
    counter_cell *counters[COUNTER_COUNT + 1];
    meter_cell *meters[METER_COUNT + 1];
    u32 colors[TABLE_COUNT + 1]; /* what each table's direct meter said last, 0 of a miss */
    value_set value_sets[VALUE_SET_COUNT + 1];
    custom_crc crcs[CRC_COUNT + 1];
    replication *groups[GROUPS];
    replication *sessions[CLONE_SESSIONS];

    u64 now;                   /* microseconds */
    u64 random;
    u32 drop_port, cpu_port, priorities, logs;
    u32 packet_budget;
    atomic_uint budget;        /* packet_budget, or 0 to drop packets in progress */
    atomic_int interrupted;
    packet *free_packets;
    family *free_families;
    packet *again, **again_last; /* recirculated packets */
    queue queues[PORTS][LARGEST_PRIORITIES];
    u32 queue_depths[PORTS][LARGEST_PRIORITIES];
    u32 queue_rates[PORTS][LARGEST_PRIORITIES]; /* packets a second; 0: without limit */
    u64 last_leaves[PORTS][LARGEST_PRIORITIES]; /* nanoseconds, where there is a rate */
    u8 paces, held;            /* whether rates count now; whether a packet waits for its time */
    u64 busy_ports[PORTS / 64];
    u32 staged[PORTS];         /* frames past egress that wait for their socket */
    u32 waiting[PORTS][LARGEST_PRIORITIES]; /* frames in the interfaces' own queues */
    output *out;               /* where egress puts frames */
    output batch, scratch;
    u64 emitted;               /* bits that the deparser emitted of the current packet */
    size_t emit_start;
    record_log digests, messages;
    switch_statistics statistics;
    u8 out_of_memory;

    /* Held for a batch of packets or one control-plane request; whoever waits for it holds
       `gate`, so that neither side starves the other. */
    pthread_mutex_t gate, lock;
    struct packet_loop *loop;
} p4_switch;

INLINE void switch_lock(p4_switch *sw) {
    pthread_mutex_lock(&sw->gate);
    pthread_mutex_lock(&sw->lock);
    pthread_mutex_unlock(&sw->gate);
}
INLINE void switch_unlock(p4_switch *sw) { pthread_mutex_unlock(&sw->lock); }

/* --- packets and their bytes */

UNUSED static packet *packet_new(p4_switch *sw) {
    packet *p = sw->free_packets;
    if (LIKELY(p != NULL)) {
        sw->free_packets = p->next;
    } else {
        p = malloc(sizeof *p);
        if (!p) { sw->out_of_memory = 1; return NULL; }
    }
    return p;
}

INLINE void buffer_release(buffer *b) {
    if (b && --b->users == 0) free(b);
}

/* --- steps: only in programs whose packets could loop for ever (cycles.py, multiplies) */

#if COUNTS_STEPS

/* The count that a packet shares with its copies; NULL without memory. */
UNUSED static family *family_of(p4_switch *sw, packet *p) {
    family *shared = p->family;
    if (shared) return shared;
    shared = sw->free_families;
    if (shared) sw->free_families = shared->next;
    else shared = malloc(sizeof *shared);
    if (!shared) { sw->out_of_memory = 1; return NULL; }
    *shared = (family){NULL, 1, p->steps};
    return p->family = shared;
}

/* Lets `copy`, whose `family` is not set yet, cost what is left of `p`; -1 without memory. */
INLINE int family_join(p4_switch *sw, packet *p, packet *copy) {
    copy->family = family_of(sw, p);
    if (UNLIKELY(!copy->family)) return -1;
    copy->family->users++;
    return 0;
}

INLINE void family_leave(p4_switch *sw, packet *p) {
    if (!p->family || --p->family->users) return;
    p->family->next = sw->free_families;
    sw->free_families = p->family;
}

/* What `p` may still cost is `again`'s. */
INLINE void family_pass_on(packet *p, packet *again) {
    again->steps = p->steps;
    again->family = p->family;
    p->family = NULL;
}

/* Counts a step of a packet; whether it had none left. */
INLINE int spend(p4_switch *sw, packet *p) {
    u32 *steps = p->family ? &p->family->steps : &p->steps;
    if (UNLIKELY(*steps >= atomic_load_explicit(&sw->budget, memory_order_relaxed))) return 1;
    ++*steps;
    return 0;
}

#define SPENT(p) UNLIKELY((p)->spent)
/* In the program's functions: ends the packet that has no steps left. */
#define STEP if (UNLIKELY(spend(sw, p))) return p->spent = 1;

#else

#define family_join(sw, p, copy) 0
#define family_leave(sw, p) ((void)0)
#define family_pass_on(p, again) ((void)0)
#define spend(sw, p) 0
#define SPENT(p) 0
#define STEP

#endif

UNUSED static void count_over_budget(p4_switch *sw) {
    if (atomic_load_explicit(&sw->budget, memory_order_relaxed)) sw->statistics.over_budget++;
}

INLINE void packet_free(p4_switch *sw, packet *p) {
    buffer_release(p->owner);
    family_leave(sw, p);
    p->next = sw->free_packets;
    sw->free_packets = p;
}

/* Resets all but the headers, for a packet of `length` bytes at `data`. */
INLINE void packet_reset(packet *p, buffer *owner, const u8 *data, u32 length) {
    memset((u8 *)p + offsetof(packet, cursor), 0,
           offsetof(packet, headers) - offsetof(packet, cursor));
    if (owner) owner->users++;
    p->owner = owner;
    p->data = data;
    p->length = p->input_length = p->current_length = length;
}

/* A copy with its metadata, without what is asked for at the end of a pipeline. */
UNUSED static packet *packet_twin(p4_switch *sw, packet *source) {
    packet *p = packet_new(sw);
    if (!p) return NULL;
    memcpy(p, source, sizeof *p);
    if (family_join(sw, source, p)) {
        p->owner = NULL;
        packet_free(sw, p);
        return NULL;
    }
    p->clones = p->resubmits = p->recirculates = p->checksum_error = 0;
    if (p->owner) p->owner->users++;
    return p;
}

/* --- output */

UNUSED static int output_room(output *o, size_t more) {
    if (LIKELY(o->used + more <= o->room)) return 0;
    size_t room = o->room ? o->room : 1 << 16;
    while (room < o->used + more) room *= 2;
    u8 *bytes = realloc(o->bytes, room);
    if (!bytes) return -1;
    o->bytes = bytes;
    o->room = room;
    return 0;
}

UNUSED static int output_frame(output *o, size_t start, u16 port) {
    if (UNLIKELY(o->count == o->frame_room)) {
        u32 room = o->frame_room ? o->frame_room * 2 : 256;
        u64 *offsets = realloc(o->offsets, room * sizeof *offsets);
        if (offsets) o->offsets = offsets;
        u32 *lengths = realloc(o->lengths, room * sizeof *lengths);
        if (lengths) o->lengths = lengths;
        u16 *ports = realloc(o->ports, room * sizeof *ports);
        if (ports) o->ports = ports;
        if (!offsets || !lengths || !ports) return -1;
        o->frame_room = room;
    }
    o->offsets[o->count] = start;
    o->lengths[o->count] = (u32)(o->used - start);
    o->ports[o->count++] = port;
    return 0;
}

UNUSED static void output_free(output *o) {
    free(o->bytes); free(o->offsets); free(o->lengths); free(o->ports);
}

/* --- records for Python; while they are not taken, new ones are lost and counted */

#define RECORD_LIMIT (1u << 22)

UNUSED static u64 *record_new(record_log *log, u32 identity, u32 words) {
    if (log->used + words + 2 > log->room) {
        size_t room = log->room ? log->room * 2 : 1024;
        while (room < log->used + words + 2) room *= 2;
        u64 *bigger = room <= RECORD_LIMIT ? realloc(log->words, room * 8) : NULL;
        if (!bigger) { log->lost++; return NULL; }
        log->words = bigger;
        log->room = room;
    }
    u64 *record = log->words + log->used;
    log->used += words + 2;
    record[0] = words;
    record[1] = identity;
    return record + 2;
}

#endif
