/*
 * The state machine of a slot: the age of a packet relative to it, and the effect of contributions.
 *
 * Decided from the slot's owner, the children it has seen and whether it is cleared:
 *
 *     owner, packet's (job, tree, epoch, fragment) -> fragment_age -> age --+
 *     cleared?  child seen?  complete? -------------------------------------+-> slot_transition
 *
 * Between the two controls of this file the lanes execute the choice of `slot_transition`.
 * The rules: docs/protocol.md; what breaks without them: its hazards.
 */
#ifndef HOPSUM_SLOTS_P4_
#define HOPSUM_SLOTS_P4_

#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"

// How does the packet's fragment compare with the slot's owner?
control FragmentAge(in hopsum_t ours, in slot_t slot, out age_t age) {
    bit<1> vacant;
    bit<1> same_job;
    epoch_t epoch_lead;
    fragment_t fragment_lead;

    action compare() {
        vacant = (bit<1>)(slot.job == 0);
        same_job = (bit<1>)(slot.job == ours.job && slot.tree == ours.tree);
        epoch_lead = ours.epoch - slot.epoch;
        fragment_lead = ours.fragment - slot.fragment;
    }

    action set_age(age_t value) {
        age = value;
    }

    // First the epoch, then the fragment, each a serial number (RFC 1982): ahead by less than half
    // of its range is newer, so the top bit of the lead means older.
    table fragment_age {
        key = {
            vacant        : ternary @name("vacant");
            same_job      : ternary @name("same_job");
            epoch_lead    : ternary @name("epoch_lead");
            fragment_lead : ternary @name("fragment_lead");
        }
        actions = {
            set_age;
        }
        const default_action = set_age(age_t.OLDER);
        const entries = {
            // vacant same_job  epoch_lead     fragment_lead
            (1, _,  _,                     _)                          : set_age(age_t.VACANT);
            (0, 0,  _,                     _)                          : set_age(age_t.FOREIGN);
            (0, 1,  0x8000 &&& 0x8000,     _)                          : set_age(age_t.OLDER);
            (0, 1,  0,                     0x80000000 &&& 0x80000000)  : set_age(age_t.OLDER);
            (0, 1,  0,                     0)                          : set_age(age_t.SAME);
            (0, 1,  _,                     _)                          : set_age(age_t.NEWER);
        }
    }

    apply {
        age = age_t.OLDER;
        compare();
        fragment_age.apply();
    }
}  // control FragmentAge

control SlotTransition(inout headers_t hdr, inout metadata_t meta) {
    bit<1> seen;
    bit<1> complete;
    bit<1> answers;

    action look() {
        seen = (bit<1>)((meta.slot.children & meta.child) != 0);
        complete = (bit<1>)(meta.slot.count == meta.slot.fan_in);
        // A switch behind a port with several children would copy each one's answer to all.
        answers = meta.slot.kept
            & (bit<1>)(meta.admitted_children == meta.child)
            & (bit<1>)(hdr.lanes.isValid() || !meta.slot_has_lanes);
    }

    // -- Actions on slot and packet ------------------------------------------

    // The packet opens the slot for its fragment; previous contents are lost.
    action take_over() {
        meta.slot.job = hdr.hopsum.job;
        meta.slot.tree = hdr.hopsum.tree;
        meta.slot.epoch = hdr.hopsum.epoch;
        meta.slot.fragment = hdr.hopsum.fragment;
        meta.slot.children = meta.child;
        meta.slot.count = 1;
        meta.slot.fan_in = hdr.hops[0].fan_in;
        meta.slot.weight = hdr.hopsum.weight;
        meta.slot.exponent = hdr.hopsum.exponent;
        meta.slot.reduction = hdr.hopsum.reduction;
        meta.slot.width = hdr.hopsum.width;
        meta.slot.cleared = 0;
        meta.slot.overflow = hdr.hopsum.overflow;
        meta.slot.ecn = hdr.hopsum.ecn;
        meta.slot.kept = 0;
        meta.slot_changed = true;
        meta.lanes_operation = lanes_operation_t.STORE;
    }

    // The same, and an unfinished sum is lost.
    action evict() {
        outcomes.count(OUTCOME_TAKEN_OVER);
        take_over();
    }

    action add() {
        meta.slot.children = meta.slot.children | meta.child;
        meta.slot.count = meta.slot.count + 1;
        meta.slot.weight = meta.slot.weight + hdr.hopsum.weight;
        meta.slot.exponent = hdr.hopsum.exponent > meta.slot.exponent
            ? hdr.hopsum.exponent : meta.slot.exponent;
        meta.slot.overflow = meta.slot.overflow | hdr.hopsum.overflow;
        meta.slot.ecn = meta.slot.ecn | hdr.hopsum.ecn;
        meta.slot_changed = true;
        meta.lanes_operation = lanes_operation_t.COMBINE;
    }

    // The sum may have been lost above: it is sent again in the place of the packet.
    action re_emit() {
        outcomes.count(OUTCOME_RE_EMITTED);
        meta.lanes_operation = lanes_operation_t.LOAD;
        meta.sum_goes_on = true;
    }

    // Too late to be added, and the result is still here.
    action answer() {
        outcomes.count(OUTCOME_ANSWERED);
        meta.lanes_operation = lanes_operation_t.LOAD;
        meta.repeats = true;
    }

    // Too late to be added, but it asks the server, which has the result or soon will.
    action mark_stale() {
        outcomes.count(OUTCOME_STALE);
        hdr.hopsum.stale = 1;
        hdr.hopsum.sequenced = 0;
        hdr.hopsum.repair = 0;
        meta.follows_stack = true;
    }

    action discard(outcome_t outcome) {
        outcomes.count(outcome);
    }

    table slot_transition {
        key = {
            meta.age          : exact   @name("age");
            meta.slot.cleared : ternary @name("cleared");
            seen              : ternary @name("seen");
            complete          : ternary @name("complete");
            answers           : ternary @name("answers");
        }
        actions = {
            take_over;
            evict;
            add;
            re_emit;
            answer;
            mark_stale;
            discard;
        }
        const default_action = discard(OUTCOME_MALFORMED);
        const entries = {
            // age      cleared seen complete answers
            // A newer packet takes the slot; only an incomplete sum is a loss.
            (age_t.VACANT,  _, _, _, _) : take_over();
            (age_t.FOREIGN, 0, _, 0, _) : evict();
            (age_t.FOREIGN, _, _, _, _) : take_over();
            (age_t.NEWER,   0, _, 0, _) : evict();
            (age_t.NEWER,   _, _, _, _) : take_over();
            // The slot has a newer fragment, or the result has passed. The packet of a
            // broadcast is too short for the result.
            (age_t.OLDER,   _, _, _, _) : mark_stale();
            (age_t.SAME,    1, _, _, 1) : answer();
            (age_t.SAME,    1, _, _, 0) : mark_stale();
            // The slot's own fragment.
            (age_t.SAME,    0, 0, 0, _) : add();
            (age_t.SAME,    0, 0, 1, _) : discard(OUTCOME_MALFORMED);  // one child too many
            (age_t.SAME,    0, 1, 0, _) : discard(OUTCOME_DUPLICATE);
            (age_t.SAME,    0, 1, 1, _) : re_emit();
        }
    }

    apply {
        look();
        if (meta.age == age_t.SAME
            && (meta.slot.reduction != hdr.hopsum.reduction
                || meta.slot.width != hdr.hopsum.width
                || (meta.slot.cleared == 0 && meta.slot.fan_in != hdr.hops[0].fan_in))) {
            // Siblings that disagree.
            discard(OUTCOME_MALFORMED);
        } else if (meta.age == age_t.SAME && seen == 1 && meta.again) {
            // Delayed or duplicated on the link: a retransmission has another number.
            discard(OUTCOME_DUPLICATE);
        } else {
            slot_transition.apply();
        }
    }
}  // control SlotTransition

control SlotConclusion(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.wrapped) {
            outcomes.count(OUTCOME_OVERFLOW);
            meta.slot.overflow = 1;
        }
        if (meta.slot_changed) {
            if (meta.slot.count == meta.slot.fan_in) {
                outcomes.count(OUTCOME_COMPLETED);
                meta.sum_goes_on = true;
            } else {
                outcomes.count(OUTCOME_AGGREGATED);
            }
        }
        meta.follows_stack = meta.follows_stack || meta.sum_goes_on;
    }
}  // control SlotConclusion

#endif  // HOPSUM_SLOTS_P4_
