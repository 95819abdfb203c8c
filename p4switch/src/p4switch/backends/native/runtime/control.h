/* The functions that Python calls. Those of the control plane take the lock; 0 is success, -1 no

   memory. Handles, slots and indices are checked by the caller (v1model/state.py). */
#ifndef P4_CONTROL_H
#define P4_CONTROL_H

#include "process.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void p4_destroy(p4_switch *sw);

EXPORT p4_switch *p4_create(u32 drop_port, u32 cpu_port, u32 queue_depth, u32 priorities,
                            u32 packet_budget, u64 seed) {
    hashes_start();
    p4_switch *sw = calloc(1, sizeof *sw);
    if (!sw) return NULL;
    int bad = !(sw->frame = calloc(1, sizeof *sw->frame));
    if (!bad) own_start(sw->frame);
    sw->again_last = &sw->again;
    sw->drop_port = drop_port;
    sw->cpu_port = cpu_port;
    for (u32 i = 0; i < PORTS * LARGEST_PRIORITIES; i++) (&sw->queue_depths[0][0])[i] = queue_depth;
    sw->priorities = priorities < LARGEST_PRIORITIES ? priorities : LARGEST_PRIORITIES;
    sw->packet_budget = packet_budget;
    atomic_init(&sw->budget, packet_budget);
    atomic_init(&sw->interrupted, 0);
    sw->random = seed;
    sw->out = &sw->batch;
    pthread_mutex_init(&sw->gate, NULL);
    pthread_mutex_init(&sw->lock, NULL);
    for (u32 i = 0; i < TABLE_COUNT; i++) bad |= table_create(&sw->tables[i], &table_specs[i]);
    for (u32 i = 0; i < PROFILE_COUNT; i++)
        sw->profiles[i].stride = (u32)sizeof(choice) + profile_words[i] * 8;
    void **groups = (void **)(void *)&sw->registers;
    for (u32 i = 0; i < REGISTER_GROUPS; i++)
        bad |= !(groups[i] = calloc(group_specs[i].size + 1, group_specs[i].stride));
    for (u32 i = 0; i < COUNTER_COUNT; i++)
        bad |= !(sw->counters[i] = calloc(counter_sizes[i] + 1, sizeof **sw->counters));
    for (u32 i = 0; i < METER_COUNT; i++)
        bad |= !(sw->meters[i] = calloc(meter_sizes[i] + 1, sizeof **sw->meters));
    if (bad) {
        p4_destroy(sw);
        return NULL;
    }
    return sw;
}

EXPORT void p4_destroy(p4_switch *sw) {
    for (u32 port = 0; port < PORTS; port++) {
        packet *p;
        while ((p = dequeue(sw, port))) packet_free(sw, p);
    }
    for (packet *p = sw->again, *next; p; p = next) {
        next = p->next;
        packet_free(sw, p);
    }
    for (packet *p = sw->free_packets, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    for (family *shared = sw->free_families, *next; shared; shared = next) {
        next = shared->next;
        free(shared);
    }
    for (u32 i = 0; i < TABLE_COUNT; i++) table_destroy(&sw->tables[i]);
    for (u32 i = 0; i < PROFILE_COUNT; i++) {
        for (u32 g = 0; g < sw->profiles[i].group_capacity; g++)
            free(sw->profiles[i].groups[g].members);
        free(sw->profiles[i].groups);
        free(sw->profiles[i].members);
    }
    void **groups = (void **)(void *)&sw->registers;
    for (u32 i = 0; i < REGISTER_GROUPS; i++) free(groups[i]);
    for (u32 i = 0; i < COUNTER_COUNT; i++) free(sw->counters[i]);
    for (u32 i = 0; i < METER_COUNT; i++) free(sw->meters[i]);
    for (u32 i = 0; i < VALUE_SET_COUNT; i++) free(sw->value_sets[i].rows);
    for (u32 i = 0; i < GROUPS; i++) free(sw->groups[i]);
    for (u32 i = 0; i < CLONE_SESSIONS; i++) free(sw->sessions[i]);
    output_free(&sw->batch);
    output_free(&sw->scratch);
    free(sw->digests.words);
    free(sw->messages.words);
    free(sw->frame);
    pthread_mutex_destroy(&sw->gate);
    pthread_mutex_destroy(&sw->lock);
    free(sw);
}

/* --- packets */

/* Results of a batch, valid until the next call. */
typedef struct {
    u64 count, bytes;
    const u8 *data;
    const u64 *offsets;
    const u32 *lengths;
    const u16 *ports;
} batch_result;

/* `bytes` holds the frames; they may lie there in any order. -1: no memory, frames were lost. */
EXPORT int p4_process(p4_switch *sw, u32 count, const u16 *ports, const u64 *offsets,
                      const u32 *lengths, const u8 *bytes, u64 now, u32 logs,
                      batch_result *result) {
    switch_lock(sw);
    sw->now = now;
    sw->logs = logs;
    sw->out = &sw->batch;
    sw->batch.used = sw->batch.count = 0;
    sw->out_of_memory = 0;
    if (atomic_load(&sw->interrupted)) count = 0;
    for (u32 i = 0; i < count; i++) {
        packet *p = packet_arrives(sw, ports[i], NULL, bytes + offsets[i], lengths[i]);
        if (p) ingress_packet(sw, p);
    }
    drain_all(sw);
    *result = (batch_result){sw->batch.count, sw->batch.used, sw->batch.bytes,
                             sw->batch.offsets, sw->batch.lengths, sw->batch.ports};
    int failed = sw->out_of_memory;
    switch_unlock(sw);
    return failed ? -1 : 0;
}

/* How many packets wait in a port's interface, by priority: LARGEST_PRIORITIES numbers. */
EXPORT void p4_set_waiting(p4_switch *sw, u32 port, const u64 *packets) {
    if (port >= PORTS) return;
    switch_lock(sw);
    for (u32 i = 0; i < LARGEST_PRIORITIES; i++) sw->waiting[port][i] = (u32)packets[i];
    switch_unlock(sw);
}

/* How many packets a queue holds, and how many leave it in a second (0: without limit). */
EXPORT void p4_queue_depth(p4_switch *sw, u32 port, u32 priority, u32 depth) {
    switch_lock(sw);
    sw->queue_depths[port][priority] = depth;
    switch_unlock(sw);
}
EXPORT void p4_queue_rate(p4_switch *sw, u32 port, u32 priority, u32 rate) {
    switch_lock(sw);
    sw->queue_rates[port][priority] = rate;
    switch_unlock(sw);
}

EXPORT void p4_set_crc(p4_switch *sw, u32 index, u32 width, u32 polynomial, u32 initial,
                       u32 final_xor, u32 reflect_data, u32 reflect_remainder) {
    switch_lock(sw);
    crc_set(&sw->crcs[index], width, polynomial, initial, final_xor, reflect_data,
            reflect_remainder);
    switch_unlock(sw);
}

/* Drops packets in progress, and all later ones. Does not wait for the lock. */
EXPORT void p4_interrupt(p4_switch *sw) {
    atomic_store(&sw->interrupted, 1);
    atomic_store(&sw->budget, 0);
}

/* Whether a packet loop records log_msg. */
EXPORT void p4_log(p4_switch *sw, u32 on) {
    switch_lock(sw);
    sw->logs = on;
    switch_unlock(sw);
}

/* --- tables */

EXPORT int p4_table_insert(p4_switch *sw, u32 number, u32 handle, const u64 *key, const u64 *mask,
                           u32 priority, u32 kind, u32 reference, u32 action,
                           const u64 *arguments, u64 now) {
    switch_lock(sw);
    table *t = &sw->tables[number];
    int failed = table_insert(t, handle, key, mask, priority);
    if (!failed) {
        entry *e = table_entry(t, handle);
        entry_set_action(t, e, kind, reference, action, arguments);
        e->last_hit = now;
    }
    switch_unlock(sw);
    return failed;
}

EXPORT void p4_table_modify(p4_switch *sw, u32 number, u32 handle, u32 kind, u32 reference,
                            u32 action, const u64 *arguments) {
    switch_lock(sw);
    table *t = &sw->tables[number];
    entry_set_action(t, table_entry(t, handle), kind, reference, action, arguments);
    switch_unlock(sw);
}

EXPORT void p4_table_delete(p4_switch *sw, u32 number, u32 handle) {
    switch_lock(sw);
    table_delete(&sw->tables[number], handle);
    switch_unlock(sw);
}

EXPORT void p4_table_default(p4_switch *sw, u32 number, u32 action, const u64 *arguments) {
    switch_lock(sw);
    table *t = &sw->tables[number];
    entry_set_action(t, t->miss, ENTRY_ACTION, 0, action, arguments);
    switch_unlock(sw);
}

/* Packets, bytes and the last hit of an entry. */
EXPORT void p4_entry_read(p4_switch *sw, u32 number, u32 handle, u64 *values) {
    switch_lock(sw);
    const entry *e = table_entry(&sw->tables[number], handle);
    values[0] = e->packets;
    values[1] = e->bytes;
    values[2] = e->last_hit;
    switch_unlock(sw);
}

EXPORT void p4_entry_count(p4_switch *sw, u32 number, u32 handle, u64 packets, u64 bytes) {
    switch_lock(sw);
    entry *e = table_entry(&sw->tables[number], handle);
    e->packets = packets;
    e->bytes = bytes;
    switch_unlock(sw);
}

EXPORT void p4_entry_meter(p4_switch *sw, u32 number, u32 handle, const i64 *rates) {
    switch_lock(sw);
    meter_configure(&table_entry(&sw->tables[number], handle)->meter, rates);
    switch_unlock(sw);
}

/* --- action profiles; slots are small numbers that the caller chooses */

EXPORT int p4_profile_member(p4_switch *sw, u32 number, u32 slot, u32 action,
                             const u64 *arguments) {
    switch_lock(sw);
    profile *p = &sw->profiles[number];
    u32 wanted = p->member_capacity ? p->member_capacity : 16;
    while (wanted <= slot) wanted *= 2;
    int failed = wanted > p->member_capacity
        && grow(&p->members, p->member_capacity, wanted, p->stride);
    if (!failed) {
        p->member_capacity = wanted;
        choice *c = profile_member(p, slot);
        c->action = action;
        memcpy(c->arguments, arguments, p->stride - sizeof *c);
    }
    switch_unlock(sw);
    return failed ? -1 : 0;
}

EXPORT int p4_profile_group(p4_switch *sw, u32 number, u32 slot, u32 count, const u32 *members) {
    switch_lock(sw);
    profile *p = &sw->profiles[number];
    u32 wanted = p->group_capacity ? p->group_capacity : 16;
    while (wanted <= slot) wanted *= 2;
    int failed = wanted > p->group_capacity
        && grow(&p->groups, p->group_capacity, wanted, sizeof *p->groups);
    u32 *list = failed ? NULL : malloc(count * sizeof *list | 1);
    if (list) {
        p->group_capacity = wanted;
        memcpy(list, members, count * sizeof *list);
        free(p->groups[slot].members);
        p->groups[slot] = (member_group){count, list};
    }
    switch_unlock(sw);
    return list ? 0 : -1;
}

/* --- replication */

static int set_replication(p4_switch *sw, replication **place, u32 count, const u16 *pairs,
                           u32 length, u32 class_of_service) {
    replication *r = malloc(sizeof *r + count * sizeof *r->replicas);
    if (!r) return -1;
    r->count = count;
    r->length = length;
    r->class_of_service = class_of_service;
    for (u32 i = 0; i < count; i++) r->replicas[i] = (replica){pairs[2 * i], pairs[2 * i + 1]};
    switch_lock(sw);
    replication *old = *place;
    *place = r;
    switch_unlock(sw);
    free(old);
    return 0;
}

static int clear_replication(p4_switch *sw, replication **place) {
    switch_lock(sw);
    replication *old = *place;
    *place = NULL;
    switch_unlock(sw);
    free(old);
    return 0;
}

/* Pairs of port and instance; NULL removes. */
EXPORT int p4_group(p4_switch *sw, u32 group, u32 count, const u16 *pairs) {
    return pairs ? set_replication(sw, &sw->groups[group], count, pairs, 0, 0)
                 : clear_replication(sw, &sw->groups[group]);
}

EXPORT int p4_session(p4_switch *sw, u32 session, u32 count, const u16 *pairs, u32 length,
                      u32 class_of_service) {
    return pairs ? set_replication(sw, &sw->sessions[session], count, pairs, length,
                                   class_of_service)
                 : clear_replication(sw, &sw->sessions[session]);
}

/* --- cells */

static u8 *register_cell(p4_switch *sw, u32 number, u64 index) {
    const register_spec *r = &register_specs[number];
    u8 **groups = (u8 **)(void *)&sw->registers;
    return groups[r->group] + index * group_specs[r->group].stride + r->offset;
}

/* `count` cells from `index` on, in the machine's byte order, one behind the other. */
EXPORT void p4_register_read(p4_switch *sw, u32 number, u64 index, u64 count, u8 *values) {
    switch_lock(sw);
    u32 size = register_specs[number].bytes;
    for (u64 i = 0; i < count; i++)
        memcpy(values + i * size, register_cell(sw, number, index + i), size);
    switch_unlock(sw);
}

EXPORT void p4_register_write(p4_switch *sw, u32 number, u64 index, const u8 *value) {
    switch_lock(sw);
    memcpy(register_cell(sw, number, index), value, register_specs[number].bytes);
    switch_unlock(sw);
}

/* Sets all cells. */
EXPORT void p4_register_fill(p4_switch *sw, u32 number, const u8 *value) {
    switch_lock(sw);
    u64 size = group_specs[register_specs[number].group].size;
    for (u64 i = 0; i < size; i++)
        memcpy(register_cell(sw, number, i), value, register_specs[number].bytes);
    switch_unlock(sw);
}

EXPORT u32 p4_register_bytes(u32 number) { return register_specs[number].bytes; }

EXPORT void p4_counter_read(p4_switch *sw, u32 number, u64 index, u64 *values) {
    switch_lock(sw);
    values[0] = sw->counters[number][index].packets;
    values[1] = sw->counters[number][index].bytes;
    switch_unlock(sw);
}

EXPORT void p4_counter_write(p4_switch *sw, u32 number, u64 index, u64 packets, u64 bytes) {
    switch_lock(sw);
    sw->counters[number][index] = (counter_cell){packets, bytes};
    switch_unlock(sw);
}

EXPORT void p4_meter(p4_switch *sw, u32 number, u64 index, const i64 *rates) {
    switch_lock(sw);
    meter_configure(&sw->meters[number][index], rates);
    switch_unlock(sw);
}

EXPORT int p4_value_set(p4_switch *sw, u32 number, u32 count, const u64 *rows) {
    size_t size = (size_t)count * value_set_words[number] * 4 * 8;
    u64 *copy = malloc(size | 1);
    if (!copy) return -1;
    memcpy(copy, rows, size);
    switch_lock(sw);
    u64 *old = sw->value_sets[number].rows;
    sw->value_sets[number] = (value_set){count, copy};
    switch_unlock(sw);
    free(old);
    return 0;
}

/* --- records and statistics */

static u64 take_records(p4_switch *sw, record_log *log, u64 *words, u64 room) {
    switch_lock(sw);
    u64 count = log->used;
    if (words && count <= room) {
        memcpy(words, log->words, count * 8);
        log->used = 0;
    }
    switch_unlock(sw);
    return count;
}

/* The words there are; taken if there is room for all of them. */
EXPORT u64 p4_take_digests(p4_switch *sw, u64 *words, u64 room) {
    return take_records(sw, &sw->digests, words, room);
}
EXPORT u64 p4_take_messages(p4_switch *sw, u64 *words, u64 room) {
    return take_records(sw, &sw->messages, words, room);
}

EXPORT void p4_statistics(p4_switch *sw, u64 *values) {
    switch_lock(sw);
    values[0] = sw->statistics.queue_drops;
    values[1] = sw->statistics.parser_errors;
    values[2] = sw->statistics.failed_assertions;
    values[3] = sw->digests.lost;
    values[4] = sw->statistics.over_budget;
    switch_unlock(sw);
}

#endif
