/* What happens to a packet around the program's blocks: queues, copies, batches. Ingress and egress
   are the architecture's (v1model.h, psa.h). */
#ifndef P4_PROCESS_H
#define P4_PROCESS_H

#include "actions.h"

/* --- queues */

/* Frames that are before a packet: in its queue, and in the interface. */
INLINE u32 queue_depth(const p4_switch *sw, const queue *q, u32 port, u32 priority) {
    u32 depth = q->count;
    for (; priority < LARGEST_PRIORITIES; priority++) depth += sw->waiting[port][priority];
    return depth;
}

UNUSED static void enqueue(p4_switch *sw, packet *p, u32 port) {
    u32 priority = (u32)std_get_priority(p);
    if (UNLIKELY(port >= PORTS || priority >= sw->priorities
                 || sw->queues[port][priority].count + sw->staged[port]
                        >= sw->queue_depths[port][priority])) {
        sw->statistics.queue_drops++;
        packet_free(sw, p);
        return;
    }
    queue *q = &sw->queues[port][priority];
    p->enqueued = sw->now;
    p->leaves = 0;
    if (UNLIKELY(sw->queue_rates[port][priority])) {
        u64 now = sw->now * 1000, *last = &sw->last_leaves[port][priority];
        *last += 1000000000 / sw->queue_rates[port][priority];
        if (*last < now) *last = now;
        p->leaves = *last;
    }
    std_set_enq_timestamp(p, sw->now);
    std_set_enq_qdepth(p, queue_depth(sw, q, port, priority));
    p->next = NULL;
    if (q->count++ == 0) q->last = &q->first;
    *q->last = p;
    q->last = &p->next;
    sw->busy_ports[port / 64] |= 1ull << (port % 64);
}

/* The next packet of a port, the highest priority first; NULL and not busy if there is none, NULL
   and `held` if its time has not come. */
UNUSED static packet *dequeue(p4_switch *sw, u32 port) {
    sw->held = 0;
    for (u32 priority = sw->priorities; priority-- > 0;) {
        queue *q = &sw->queues[port][priority];
        packet *p = q->first;
        if (!q->count) continue;
        if (UNLIKELY(sw->paces && p->leaves > sw->now * 1000)) {
            sw->held = 1;
            continue;
        }
        q->first = p->next;
        if (--q->count == 0) q->last = &q->first;
        std_set_deq_qdepth(p, q->count);
        return p;
    }
    if (!sw->held) sw->busy_ports[port / 64] &= ~(1ull << (port % 64));
    return NULL;
}

/* A copy to each replica; the original is used up. */
UNUSED static void replicate(p4_switch *sw, packet *p, const replication *to) {
    for (u32 i = 0; to && i < to->count; i++) {
        if (spend(sw, p)) {
            count_over_budget(sw);
            break;
        }
        packet *copy = packet_twin(sw, p);
        if (!copy) break;
        std_set_egress_rid(copy, to->replicas[i].instance);
        enqueue(sw, copy, to->replicas[i].port);
    }
    packet_free(sw, p);
}

/* --- ends of packets */

/* A packet has no steps left. NULL: it ends here. */
UNUSED static packet *packet_over(p4_switch *sw, packet *p) {
    count_over_budget(sw);
    packet_free(sw, p);
    return NULL;
}

/* Appends what the parser left; -1 without memory. */
INLINE int append_payload(p4_switch *sw, const packet *p) {
    output *o = sw->out;
    o->used = sw->emit_start + (sw->emitted + 7) / 8;
#if !ALIGNED
    if ((sw->emitted | p->cursor) % 8) {
        u32 rest = p->length * 8 - p->cursor;
        u8 *to = emit_room(sw, rest);
        if (!to) return -1;
        u32 at = (u32)(sw->emitted % 8), from = p->cursor;
        sw->emitted += rest;
        for (; rest >= 8; rest -= 8, at += 8, from += 8)
            put_bits(to, at, 8, get_bits(p->data, from, 8));
        put_bits(to, at, rest, get_bits(p->data, from, rest));
        o->used = sw->emit_start + (sw->emitted + 7) / 8;
        return 0;
    }
#endif
    u32 payload = payload_length(p);
    if (UNLIKELY(output_room(o, payload))) return -1;
    if (payload) memcpy(o->bytes + o->used, p->data + p->length - payload, payload);
    o->used += payload;
    return 0;
}

/* A copy of bytes, which no packet uses yet; NULL without memory. */
UNUSED static buffer *buffer_of(const u8 *bytes, u32 length) {
    buffer *b = malloc(sizeof *b + length);
    if (!b) return NULL;
    b->users = 0;
    b->size = length;
    if (length) memcpy(b->bytes, bytes, length);
    return b;
}

/* A packet starts over when the others are through. */
INLINE void recirculates_later(p4_switch *sw, packet *again) {
    again->next = NULL;
    *sw->again_last = again;
    sw->again_last = &again->next;
}

#include ARCHITECTURE

/* --- batches */

INLINE void ingress_packet(p4_switch *sw, packet *p) {
    while (p) p = ingress_once(sw, p);
}

/* Recirculated packets go through ingress; those that this makes wait for the next time. */
UNUSED static void ingress_again(p4_switch *sw) {
    packet *p = sw->again;
    sw->again = NULL;
    sw->again_last = &sw->again;
    while (p) {
        packet *next = p->next;
        ingress_packet(sw, p);
        p = next;
    }
}

/* Port by port in ascending order; clones made on the way wait for their port's turn. */
UNUSED static void drain_queues(p4_switch *sw) {
    for (;;) {
        u64 busy[PORTS / 64], any = 0;
        for (u32 word = 0; word < PORTS / 64; word++) any |= busy[word] = sw->busy_ports[word];
        if (!any) return;
        for (u32 word = 0; word < PORTS / 64; word++)
            for (; busy[word]; busy[word] &= busy[word] - 1) {
                u32 port = word * 64 + (u32)__builtin_ctzll(busy[word]);
                packet *p;
                while ((p = dequeue(sw, port))) egress_packet(sw, p, port);
            }
    }
}

UNUSED static void drain_all(p4_switch *sw) {
    drain_queues(sw);
    while (sw->again) {
        ingress_again(sw);
        drain_queues(sw);
    }
}

#endif
