/*
 * The inspector: shows a slot to the controller.
 *
 * P4Runtime cannot read registers on BMv2, so slots are read in-band: a packet-out with an
 * INSPECT frame of full size comes back as a packet-in, the slot's state in its header and frame,
 * read between two data packets and therefore consistent.
 */
#ifndef HOPSUM_INSPECTOR_P4_
#define HOPSUM_INSPECTOR_P4_

#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"

control Inspector(inout headers_t hdr,
                  in metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    action show_slot() {
        hdr.packet_in.setValid();
        hdr.packet_in.opcode = opcode_t.INSPECT;
        hdr.packet_in._pad = 0;
        hdr.packet_in.port = standard_metadata.ingress_port;
        hdr.packet_in.slot = meta.slot_index;
        hdr.packet_in.bitmap = meta.slot.children;
        hdr.packet_in.count = (bit<16>)meta.slot.count;
        hdr.packet_in.fan_in = (bit<16>)meta.slot.fan_in;
        hdr.packet_in.cleared = (bit<8>)meta.slot.cleared;
        hdr.packet_in.valid = meta.slot.job != 0 ? 8w1 : 0;

        hdr.hopsum.job = meta.slot.job;
        hdr.hopsum.tree = meta.slot.tree;
        hdr.hopsum.epoch = meta.slot.epoch;
        hdr.hopsum.fragment = meta.slot.fragment;
        hdr.hopsum.weight = meta.slot.weight;
        hdr.hopsum.exponent = meta.slot.exponent;
        hdr.hopsum.reduction = meta.slot.reduction;
        hdr.hopsum.width = meta.slot.width;
        hdr.hopsum.overflow = meta.slot.overflow;
        hdr.hopsum.ecn = meta.slot.ecn;

        hdr.packet_out.setInvalid();
        standard_metadata.egress_spec = CPU_PORT;
    }

    apply {
        outcomes.count(OUTCOME_INSPECTED);
        show_slot();
    }
}  // control Inspector

#endif  // HOPSUM_INSPECTOR_P4_
