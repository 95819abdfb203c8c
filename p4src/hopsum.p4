/*
 * hopsum: a switch that sums gradients on their way through the network.
 *
 * Contributions travel up, from children to the server, and join in slots; results travel down
 * and clear them. The stack of hop entries in a packet says what each switch does with it, tables
 * say what it may do. docs/protocol.md describes the protocol, src/hopsum/protocol/wire.py the packets.
 *
 *   parser                is it hopsum's, and well-formed?                   parser.p4
 *   ingress
 *     priorities          which queue does it wait in?                       priorities.p4
 *     faults              is it lost on purpose?                             faults.p4
 *     admission           may it use its job's slots, and for what?         admission.p4
 *     sent log            request: which slot answers it?                    sequencing.p4
 *     read slot           the state of its slot                              slot_memory.p4
 *     fragment age        is the packet newer than that?                     slots.p4
 *       slot machine      contribution: action on slot and packet            slots.p4
 *       results           result: what does it clear, and is it kept?        results.p4
 *       answer            request: is the answer here?                       repairs.p4
 *     arrivals            is an earlier one missing?                         sequencing.p4
 *     lanes               store, combine or load the values                  lanes_*.p4
 *       conclusion        contribution: is the sum complete?                 slots.p4
 *       inspector         inspection: show the slot to the controller        inspector.p4
 *     write slot          its new state                                      slot_memory.p4
 *     sent log            number what is forwarded                           sequencing.p4
 *     send back           a sum or result that a neighbour has lost          repairs.p4
 *     stack forwarding    execute and pop the first hop entry                forwarding.p4
 *     plain forwarding    everything that is not hopsum's                    forwarding.p4
 *   egress
 *     request             a clone that goes back requests what is missing    repairs.p4
 *     faults              is this copy lost on purpose?                      faults.p4
 *     congestion          did it meet a long queue?                          congestion.p4
 *   checksums, deparser                                          checksums.p4, deparser.p4
 */
#include <core.p4>
#include <v1model.p4>

#include "include/config.p4"
#include "include/types.p4"
#include "include/outcomes.p4"
#include "include/headers.p4"
#include "include/metadata.p4"
#include "include/parser.p4"
#include "include/checksums.p4"
#include "include/priorities.p4"
#include "include/faults.p4"
#include "include/admission.p4"
#include "include/slot_memory.p4"
#include "include/slots.p4"
#include "include/results.p4"
#include "include/sequencing.p4"
#include "include/repairs.p4"
#include "include/inspector.p4"
#include "include/forwarding.p4"
#include "include/congestion.p4"
#include "include/deparser.p4"

control HopsumIngress(inout headers_t hdr,
                      inout metadata_t meta,
                      inout standard_metadata_t standard_metadata) {
    Priorities() priorities;
    IngressFaults() faults;
    Admission() admission;
    ReadSlot() read_slot;
    FragmentAge() fragment_age;
    SlotTransition() slot_machine;
    Results() results;
    Arrivals() child_arrivals;
    Arrivals() result_arrivals;
    SentLog() sums_sent;
    SentLog() results_sent;
    AnswerRequest() answer_request;
    BecomeTheSlot() become_the_slot;
    NumberFrame() number_frame;
    SendBack() send_back;
    Lanes() lanes;
    SlotConclusion() conclusion;
    WriteSlot() write_slot;
    Inspector() inspector;
    StackForwarding() stack_forwarding;
    PacketOuts() packet_outs;
    PlainForwarding() plain_forwarding;

    bool found;
    bit<16> number;
    fragment_t fragment;

    apply {
        mark_to_drop(standard_metadata);  // until some stage sets a port
        priorities.apply(hdr, standard_metadata);
        faults.apply(meta, standard_metadata);

        if (meta.lost) {
            outcomes.count(OUTCOME_INJECTED_LOSS);
        } else if (standard_metadata.parser_error != error.NoError
                   || standard_metadata.checksum_error == 1) {
            outcomes.count(OUTCOME_MALFORMED);
        } else if (hdr.hopsum.isValid()) {
            admission.apply(hdr, meta, standard_metadata);
            if (meta.task != task_t.DISCARD && meta.task != task_t.PASS) {
                found = false;
                fragment = 0;
                if (meta.task == task_t.REPEAT_SUM) {
                    sums_sent.apply(hdr.hopsum, meta.slot_base, meta.window_mask, false,
                                    number, fragment, found);
                } else if (meta.task == task_t.REPEAT_RESULT) {
                    results_sent.apply(hdr.hopsum, meta.slot_base, meta.window_mask, false,
                                       number, fragment, found);
                }
                if (found) {
                    hdr.hopsum.fragment = fragment;
                    meta.slot_index = (meta.slot_base + (fragment & meta.window_mask)) & SLOT_MASK;
                }
                read_slot.apply(meta);
                fragment_age.apply(hdr.hopsum, meta.slot, meta.age);
                if (meta.task == task_t.AGGREGATE) {
                    if (hdr.hopsum.sequenced == 1
                        && (fragment_t)hdr.hops[0].child <= meta.window_mask) {
                        child_arrivals.apply(
                            (meta.slot_base + (slot_index_t)hdr.hops[0].child) & SLOT_MASK,
                            hdr.hopsum, meta.asks, meta.missing, meta.again);
                    }
                    slot_machine.apply(hdr, meta);
                } else if (meta.task == task_t.DELIVER) {
                    results.apply(hdr, meta, standard_metadata);
                    if (hdr.hopsum.sequenced == 1 && meta.sums_here) {
                        result_arrivals.apply(meta.slot_base & SLOT_MASK,
                                              hdr.hopsum, meta.asks, meta.missing, meta.again);
                    }
                } else if (meta.task != task_t.INSPECT) {
                    answer_request.apply(hdr, meta, found);
                }
                if (hdr.lanes.isValid()
                    && (meta.slot_has_lanes || meta.lanes_operation != lanes_operation_t.LOAD)) {
                    lanes.apply(hdr.lanes, meta.lanes_operation, meta.slot.reduction,
                                meta.slot.width, meta.slot_index, meta.wrapped);
                }
                if (meta.task == task_t.AGGREGATE) {
                    conclusion.apply(hdr, meta);
                } else if (meta.task == task_t.INSPECT) {
                    inspector.apply(hdr, meta, standard_metadata);
                }
                if (meta.slot_changed) {
                    write_slot.apply(meta);
                }
                if (meta.asks) {
                    outcomes.count(OUTCOME_REQUESTED);
                    clone_preserving_field_list(CloneType.I2E,
                        (bit<32>)standard_metadata.ingress_port + 1, FIELDS_OF_REQUESTS);
                }
                if (meta.sum_goes_on) {
                    become_the_slot.apply(hdr, meta);
                    sums_sent.apply(hdr.hopsum, meta.slot_base, meta.window_mask, true,
                                    number, fragment, found);
                    number_frame.apply(hdr, standard_metadata, found, number);
                } else if (meta.is_sent) {
                    results_sent.apply(hdr.hopsum, meta.slot_base, meta.window_mask, true,
                                       number, fragment, found);
                    number_frame.apply(hdr, standard_metadata, found, number);
                } else if (meta.repeats) {
                    become_the_slot.apply(hdr, meta);
                    send_back.apply(hdr, meta, standard_metadata);
                }
            }
            if (meta.follows_stack) {
                stack_forwarding.apply(hdr, standard_metadata);
            }
        } else if (hdr.packet_out.isValid()) {
            packet_outs.apply(hdr, standard_metadata);
        } else {
            plain_forwarding.apply(hdr, standard_metadata);
        }
    }
}  // control HopsumIngress

control HopsumEgress(inout headers_t hdr,
                     inout metadata_t meta,
                     inout standard_metadata_t standard_metadata) {
    BecomeRequest() become_request;
    EgressFaults() faults;
    Congestion() congestion;

    apply {
        if (standard_metadata.instance_type == INSTANCE_TYPE_REPLICATION
            && standard_metadata.egress_port == standard_metadata.ingress_port) {
            mark_to_drop(standard_metadata);  // flooding excludes the ingress port
        } else {
            if (standard_metadata.instance_type == INSTANCE_TYPE_INGRESS_CLONE) {
                become_request.apply(hdr, meta);
            }
            faults.apply(meta, standard_metadata);
            if (meta.lost) {
                outcomes.count(OUTCOME_INJECTED_LOSS);
                mark_to_drop(standard_metadata);
            } else {
                congestion.apply(hdr, standard_metadata);
            }
        }
    }
}  // control HopsumEgress

V1Switch(
    HopsumParser(),
    HopsumVerifyChecksum(),
    HopsumIngress(),
    HopsumEgress(),
    HopsumComputeChecksum(),
    HopsumDeparser()
) main;
