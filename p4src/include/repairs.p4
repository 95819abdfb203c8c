/*
 * Repairs: frames sent back to a neighbour, and requests for frames lost on the link from it.
 *
 * A request is the frame that showed the gap, sent back over the link that it arrived on: a clone
 * of it with the missing number. It keeps the lanes of that frame, if any, because it becomes its
 * own answer (BMv2 lets a packet grow by 512 bytes, too few for lanes), and the stack
 * that the sum needs. The slot answers: with the sum for the
 * parent, with the result for a child. Both are urgent: behind a window of packets they would come
 * a window late.
 */
#ifndef HOPSUM_REPAIRS_P4_
#define HOPSUM_REPAIRS_P4_

#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"

// Is the requested sum or result in its slot?
control AnswerRequest(inout headers_t hdr, inout metadata_t meta, in bool found) {
    bool here;

    action repeat() {
        outcomes.count(OUTCOME_REPEATED);
        meta.lanes_operation = lanes_operation_t.LOAD;
        meta.repeats = true;
    }

    action discard() {
        outcomes.count(OUTCOME_UNANSWERED);
    }

    apply {
        here = found
            && meta.slot.job == hdr.hopsum.job
            && meta.slot.tree == hdr.hopsum.tree
            && meta.slot.epoch == hdr.hopsum.epoch
            && meta.slot.fragment == hdr.hopsum.fragment;
        if (meta.task == task_t.REPEAT_SUM) {
            here = here && meta.slot.cleared == 0 && meta.slot.count == meta.slot.fan_in;
        } else {
            here = here && meta.slot.kept == 1;
        }
        // The answer may be shorter than the request, not longer.
        here = here && (hdr.lanes.isValid() || !meta.slot_has_lanes);
        if (here) {
            repeat();
        } else {
            discard();
        }
    }
}  // control AnswerRequest

// The packet becomes that of its slot: the sum of all children seen, or the result.
control BecomeTheSlot(inout headers_t hdr, in metadata_t meta) {
    action become_the_slot() {
        hdr.hopsum.weight = meta.slot.weight;
        hdr.hopsum.exponent = meta.slot.exponent;
        hdr.hopsum.reduction = meta.slot.reduction;
        hdr.hopsum.width = meta.slot.width;
        hdr.hopsum.overflow = meta.slot.overflow;
        hdr.hopsum.ecn = meta.slot.ecn;
    }

    apply {
        become_the_slot();
    }
}  // control BecomeTheSlot

// It is sent for the first time, with its job's priority.
control NumberFrame(inout headers_t hdr,
                    inout standard_metadata_t standard_metadata,
                    in bool numbered,
                    in sequence_t number) {
    action number_frame() {
        hdr.hopsum.sequence = number;
        hdr.hopsum.sequenced = (bit<1>)numbered;
        hdr.hopsum.repair = 0;
        hdr.ipv4.tos[4:4] = 0;
        hdr.udp.checksum = 0;
        standard_metadata.priority = hdr.ipv4.tos[7:5];
    }

    apply {
        number_frame();
    }
}  // control NumberFrame

// The slot is sent out of the ingress port.
control SendBack(inout headers_t hdr,
                 in metadata_t meta,
                 inout standard_metadata_t standard_metadata) {
    mac_addr_t mac;
    ipv4_addr_t addr;
    bit<16> stack_bytes;

    action remove_lanes() {
        hdr.lanes.setInvalid();
        hdr.ipv4.total_length = hdr.ipv4.total_length - LANES_BYTES;
        hdr.udp.udp_length = hdr.udp.udp_length - LANES_BYTES;
    }

    action make_urgent() {
        hdr.ipv4.tos[4:4] = 1;
        hdr.udp.checksum = 0;
        standard_metadata.priority = FIRST_QUEUE;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    action become_sum() {
        hdr.hopsum.kind = kind_t.CONTRIBUTION;
        hdr.hopsum.sequenced = 1;
        hdr.hopsum.repair = 1;
        mac = hdr.ethernet.src_mac;
        hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
        hdr.ethernet.dst_mac = mac;
        addr = hdr.ipv4.src_addr;
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = addr;
    }

    // For a request or a contribution: both go to the server.
    action become_result() {
        stack_bytes = HOP_BYTES * (bit<16>)hdr.hopsum.hops;
        hdr.ipv4.total_length = hdr.ipv4.total_length - stack_bytes;
        hdr.udp.udp_length = hdr.udp.udp_length - stack_bytes;
        hdr.hops.pop_front(MAX_HOPS);
        hdr.hopsum.hops = 0;
        hdr.hopsum.sequenced = (bit<1>)(hdr.hopsum.kind == kind_t.REQUEST);
        hdr.hopsum.repair = hdr.hopsum.sequenced;
        hdr.hopsum.kind = kind_t.REPLICATED;
        hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
        hdr.ethernet.dst_mac = GROUP_MAC;
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = GROUP_ADDR;
    }

    apply {
        if (hdr.lanes.isValid() && !meta.slot_has_lanes) {
            remove_lanes();
        }
        make_urgent();
        if (meta.task == task_t.REPEAT_SUM) {
            become_sum();
        } else {
            become_result();
        }
    }
}  // control SendBack

// In egress: turn the clone that goes back into a request for the missing number.
control BecomeRequest(inout headers_t hdr, in metadata_t meta) {
    mac_addr_t mac;
    ipv4_addr_t addr;

    action become_request() {
        mac = hdr.ethernet.src_mac;
        hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
        hdr.ethernet.dst_mac = mac;
        addr = hdr.ipv4.src_addr;
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = addr;
        hdr.ipv4.tos[4:4] = 1;
        hdr.udp.checksum = 0;
        hdr.hopsum.sequence = meta.missing;
        hdr.hopsum.sequenced = 1;
        hdr.hopsum.repair = 0;
    }

    action leave_the_group() {
        hdr.ethernet.src_mac = SWITCH_MAC;
        hdr.ipv4.src_addr = SWITCH_ADDR;
    }

    apply {
        become_request();
        if (hdr.hopsum.kind == kind_t.REPLICATED) {
            leave_the_group();
        }
        hdr.hopsum.kind = kind_t.REQUEST;
    }
}  // control BecomeRequest

#endif  // HOPSUM_REPAIRS_P4_
