/*
 * Results on their way down: the slot that they clear, and their output ports.
 *
 * The first entry of a stack directs a unicast result; a replicated one is directed by a
 * table on (job, tree, epoch), so that tables of mixed plans cannot form a loop.
 * A slot is cleared only while it holds exactly the fragment of the result, because several
 * results pass a shared switch and the next fragment may already be there. It keeps its owner.
 * A replicated result is kept until the slot is reused, also by a slot that was empty.
 */
#ifndef HOPSUM_RESULTS_P4_
#define HOPSUM_RESULTS_P4_

#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"

control Results(inout headers_t hdr,
                inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    bit<1> clears;

    // One copy to each member of `group`; `clear` 1 clears the slot.
    @id(5)
    action replicate(bit<16> group, bit<1> clear) {
        standard_metadata.mcast_grp = group;
        clears = clear;
    }

    @id(6)
    action no_group() {
        outcomes.count(OUTCOME_NOT_ADMITTED);
        meta.task = task_t.DISCARD;
    }

    @id(3)
    table replication {
        key = {
            hdr.hopsum.job   : exact @id(1) @name("job");
            hdr.hopsum.tree  : exact @id(2) @name("tree");
            hdr.hopsum.epoch : exact @id(3) @name("epoch");
        }
        actions = {
            replicate;
            @defaultonly no_group;
        }
        const default_action = no_group();
        size = REPLICATION_SIZE;
    }

    action clear_slot() {
        outcomes.count(OUTCOME_CLEARED);
        meta.slot.cleared = 1;
        meta.slot_changed = true;
    }

    // Until the slot is reused it answers for the server.
    action keep_result() {
        meta.slot.kept = 1;
        meta.slot.reduction = hdr.hopsum.reduction;
        meta.slot.width = hdr.hopsum.width;
        meta.slot.weight = hdr.hopsum.weight;
        meta.slot.exponent = hdr.hopsum.exponent;
        meta.slot.overflow = hdr.hopsum.overflow;
        meta.slot.ecn = hdr.hopsum.ecn;
        meta.lanes_operation = lanes_operation_t.STORE;
    }

    // The slot's contents are obsolete: no part of this sum has been here since it was
    // last used, because the switch has rebooted, the plan is new, or the parts bypassed it.
    action open_for_result() {
        outcomes.count(OUTCOME_KEPT);
        meta.slot.job = hdr.hopsum.job;
        meta.slot.tree = hdr.hopsum.tree;
        meta.slot.epoch = hdr.hopsum.epoch;
        meta.slot.fragment = hdr.hopsum.fragment;
        meta.slot.children = 0;
        meta.slot.count = 0;
        meta.slot.fan_in = 0;
        meta.slot.cleared = 1;
        meta.slot_changed = true;
    }

    // It was forwarded before; neighbours that missed it request it.
    action discard() {
        outcomes.count(OUTCOME_DUPLICATE);
        standard_metadata.mcast_grp = 0;
        meta.task = task_t.DISCARD;
    }

    apply {
        clears = 0;
        if (hdr.hopsum.kind == kind_t.REPLICATED) {
            replication.apply();
        } else {
            clears = hdr.hops[0].clear;
            meta.follows_stack = true;
        }
        if (meta.task == task_t.DELIVER) {
            meta.sums_here = clears == 1 && hdr.hopsum.kind == kind_t.REPLICATED;
            if (!meta.sums_here) {
                hdr.hopsum.sequenced = 0;  // the number was for another neighbour
                hdr.hopsum.repair = 0;
                hdr.udp.checksum = 0;
            }
            if (meta.sums_here && meta.age == age_t.SAME && meta.slot.kept == 1) {
                discard();
            } else {
                if (clears == 1 && meta.age == age_t.SAME && meta.slot.cleared == 0) {
                    clear_slot();
                    if (meta.sums_here) {
                        keep_result();
                    }
                } else if (meta.sums_here
                           && (meta.age == age_t.VACANT || meta.age == age_t.NEWER
                               || (meta.age == age_t.FOREIGN && meta.slot.cleared == 1))) {
                    open_for_result();
                    keep_result();
                } else {
                    outcomes.count(OUTCOME_RESULT);
                }
                meta.is_sent = meta.sums_here;
            }
        }
    }
}  // control Results

#endif  // HOPSUM_RESULTS_P4_
