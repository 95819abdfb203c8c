/*
 * Results on their way down: which slot they clear and where they go.
 *
 * A result with a stack is told by its first entry; one that the switches replicate, by a
 * table on (job, tree, epoch): keyed by the epoch, so that tables of mixed plans cannot loop it.
 * A slot is cleared only while it holds exactly the fragment of the result, because several
 * results pass a shared switch and the next fragment may already be there. It keeps its owner.
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

    // One copy to each member of `group`; a `clear` of 1 clears the slot on the way.
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

    apply {
        clears = 0;
        if (hdr.hopsum.kind == kind_t.REPLICATED) {
            replication.apply();
        } else {
            clears = hdr.hops[0].clear;
            meta.follows_stack = true;
        }
        if (meta.task == task_t.DELIVER) {
            if (clears == 1
                && meta.slot.cleared == 0
                && meta.slot.job == hdr.hopsum.job
                && meta.slot.tree == hdr.hopsum.tree
                && meta.slot.epoch == hdr.hopsum.epoch
                && meta.slot.fragment == hdr.hopsum.fragment) {
                clear_slot();
            } else {
                outcomes.count(OUTCOME_RESULT);
            }
        }
    }
}  // control Results

#endif  // HOPSUM_RESULTS_P4_
