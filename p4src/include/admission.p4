/*
 * Admission: whether a packet may use its job's slots here, and its task.
 *
 * Decided from its ingress port, its kind and flags, and the first entry of its stack. A port
 * below this switch admits some children of a job's tree; the port towards the server admits
 * results. No other packet reaches the job's slots, and none reaches another job's.
 *
 *     (job, tree, port) -> admission -> sender, slot --+
 *     (kind, flags, first entry) ----------------------+-> purpose -> task
 */
#ifndef HOPSUM_ADMISSION_P4_
#define HOPSUM_ADMISSION_P4_

#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"

control Admission(inout headers_t hdr,
                  inout metadata_t meta,
                  in standard_metadata_t standard_metadata) {

    // -- Sender and slot -----------------------------------------------------

    // A job's slots are slot_base .. slot_base + window_mask; its fragments use them in turn.
    action choose_slot(slot_index_t slot_base, fragment_t window_mask) {
        meta.slot_base = slot_base;
        meta.window_mask = window_mask;
        meta.slot_index = (slot_base + (hdr.hopsum.fragment & window_mask)) & SLOT_MASK;
    }

    // `children` are admitted here, out of `fan_in`. A switch that does not aggregate for the
    // tree has 0 of both.
    @id(7)
    action admit_children(slot_index_t slot_base,
                          fragment_t window_mask,
                          fan_in_t fan_in,
                          children_t children) {
        meta.sender = sender_t.CHILD;
        meta.admitted_fan_in = fan_in;
        meta.admitted_children = children;
        choose_slot(slot_base, window_mask);
    }

    // Results are admitted here.
    @id(8)
    action admit_results(slot_index_t slot_base, fragment_t window_mask) {
        meta.sender = sender_t.SERVER;
        choose_slot(slot_base, window_mask);
    }

    @id(9)
    action not_admitted() {
        meta.sender = sender_t.UNADMITTED;
    }

    @id(4)
    table admission {
        key = {
            hdr.hopsum.job                 : exact @id(1) @name("job");
            hdr.hopsum.tree                : exact @id(2) @name("tree");
            standard_metadata.ingress_port : exact @id(3) @name("ingress_port");
        }
        actions = {
            admit_children;
            admit_results;
            @defaultonly not_admitted;
        }
        const default_action = not_admitted();
        size = ADMISSION_SIZE;
    }

    // -- Purpose -------------------------------------------------------------

    action refuse(outcome_t outcome) {
        outcomes.count(outcome);
        meta.task = task_t.DISCARD;
    }

    action pass(outcome_t outcome) {
        outcomes.count(outcome);
        meta.task = task_t.PASS;
        meta.follows_stack = true;
        // The next neighbour on the path is not the one that the number was for.
        hdr.hopsum.sequenced = 0;
        hdr.hopsum.repair = 0;
    }

    action aggregate() {
        meta.task = task_t.AGGREGATE;
        // By halves, since BMv2's shift amounts have at most 8 bits.
        bit<256> half = 256w1 << hdr.hops[0].child[7:0];
        meta.child = hdr.hops[0].child[8:8] == 1 ? half ++ 256w0 : 256w0 ++ half;
    }

    action deliver() {
        meta.task = task_t.DELIVER;
    }

    action repeat_sum() {
        meta.task = task_t.REPEAT_SUM;
    }

    action repeat_result() {
        meta.task = task_t.REPEAT_RESULT;
    }

    table purpose {
        key = {
            hdr.hopsum.kind       : exact   @name("kind");
            meta.sender           : exact   @name("sender");
            hdr.hops[0].aggregate : ternary @name("aggregate");
            hdr.hopsum.stale      : ternary @name("stale");
            hdr.hopsum.bypass     : ternary @name("bypass");
        }
        actions = {
            refuse;
            pass;
            aggregate;
            deliver;
            repeat_sum;
            repeat_result;
        }
        const default_action = refuse(OUTCOME_NOT_ADMITTED);
        const entries = {
            // kind                sender           aggregate stale bypass
            (kind_t.CONTRIBUTION, sender_t.CHILD,  _, _, 1) : pass(OUTCOME_BYPASSED);
            (kind_t.CONTRIBUTION, sender_t.CHILD,  _, 1, _) : pass(OUTCOME_FORWARDED);
            (kind_t.CONTRIBUTION, sender_t.CHILD,  0, _, _) : pass(OUTCOME_FORWARDED);
            (kind_t.CONTRIBUTION, sender_t.CHILD,  1, 0, 0) : aggregate();
            (kind_t.RESULT,       sender_t.SERVER, _, _, _) : deliver();
            (kind_t.REPLICATED,   sender_t.SERVER, _, _, _) : deliver();
            (kind_t.REQUEST,      sender_t.SERVER, _, _, _) : repeat_sum();
            (kind_t.REQUEST,      sender_t.CHILD,  _, _, _) : repeat_result();
        }
    }

    apply {
        if (hdr.packet_out.isValid()) {
            // The parser accepts only inspections from there.
            meta.task = task_t.INSPECT;
            meta.slot_index = hdr.packet_out.slot & SLOT_MASK;
            meta.lanes_operation = lanes_operation_t.LOAD;
        } else if (hdr.hops[0].isValid()
                   && (hdr.hops[0].port > (bit<11>)MAX_PORT || hdr.hops[0].port == CPU_PORT)) {
            refuse(OUTCOME_MALFORMED);
        } else {
            admission.apply();
            purpose.apply();
            if (meta.task == task_t.AGGREGATE) {
                if ((meta.admitted_children & meta.child) == 0) {
                    refuse(OUTCOME_NOT_ADMITTED);
                } else if (meta.admitted_fan_in != hdr.hops[0].fan_in) {
                    // The worker and the controller use different plans.
                    refuse(OUTCOME_MALFORMED);
                }
            } else if ((meta.task == task_t.REPEAT_SUM && !hdr.hops[0].isValid())
                       || (meta.task == task_t.REPEAT_RESULT && hdr.hops[0].isValid())) {
                refuse(OUTCOME_MALFORMED);
            }
        }
    }
}  // control Admission

#endif  // HOPSUM_ADMISSION_P4_
