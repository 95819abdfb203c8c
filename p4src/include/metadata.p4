/*
 * Metadata of a packet, shared by the stages.
 *
 * Initially all zero and false: v1model targets clear user metadata before the parser.
 */
#ifndef HOPSUM_METADATA_P4_
#define HOPSUM_METADATA_P4_

#include "types.p4"

// A slot's state without its lanes: one register cell, see slot_memory.p4.
struct slot_t {
    // The owner stays when the slot is cleared, so that late packets are recognised.
    job_t       job;
    tree_t      tree;
    epoch_t     epoch;
    fragment_t  fragment;
    // Of the sum so far.
    children_t  children;   // seen
    fan_in_t    count;      // number of children seen
    fan_in_t    fan_in;     // number of children
    weight_t    weight;
    exponent_t  exponent;
    reduction_t reduction;
    width_t     width;
    bit<1>      cleared;
    bit<1>      overflow;
    bit<1>      ecn;
    bit<1>      kept;       // cleared, and the lanes hold the result
}

struct metadata_t {
    // faults.p4
    bool              lost;
    // admission.p4
    sender_t          sender;
    children_t        admitted_children;
    fan_in_t          admitted_fan_in;
    task_t            task;
    slot_index_t      slot_base;
    fragment_t        window_mask;
    slot_index_t      slot_index;
    // sequencing.p4
    @field_list(1)
    sequence_t        missing;        // number to request
    bool              asks;
    bool              again;          // a copy of an earlier frame, under the same number
    // slots.p4, results.p4
    children_t        child;          // this packet's, as a bit
    slot_t            slot;           // as read, then as it will be written
    bool              slot_has_lanes; // as read
    age_t             age;            // of the packet, relative to the slot as read
    bool              slot_changed;
    lanes_operation_t lanes_operation;
    bool              wrapped;        // a value wrapped around in this addition
    bool              sum_goes_on;    // the packet becomes the slot's sum
    bool              follows_stack;  // the packet leaves where its stack says
    bool              sums_here;      // this switch sums for the tree of this result
    bool              is_sent;        // a replicated result that is forwarded
    bool              repeats;        // the slot is sent out of the ingress port
}

#endif  // HOPSUM_METADATA_P4_
