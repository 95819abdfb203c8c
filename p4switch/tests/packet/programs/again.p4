// Resubmit and recirculate: `left` turns of each kind, counting the passes through ingress.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  resubmits;
    bit<8>  recirculations;
    bit<8>  passes;
    bit<8>  instance_type;
    bit<16> length;
}

header extra_t {
    bit<8> mark;
}

struct headers_t {
    op_t    op;
    extra_t extra;
}

struct meta_t {
    @field_list(3)
    bit<8> resubmitted;
    @field_list(4)
    bit<8> passes;
}

parser AgainParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control AgainIngress(inout headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        meta.passes = meta.passes + 1;
        if (meta.resubmitted < hdr.op.resubmits) {
            meta.resubmitted = meta.resubmitted + 1;
            hdr.op.passes = 0xee;  // a resubmitted packet is the one that came in
            resubmit_preserving_field_list(3);
        } else {
            hdr.op.passes = hdr.op.passes + meta.passes;
            hdr.op.instance_type = (bit<8>) standard_metadata.instance_type;
        }
    }
}

control AgainEgress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply {
        hdr.op.length = (bit<16>) standard_metadata.packet_length;
        if (hdr.op.recirculations > 0) {
            hdr.op.recirculations = hdr.op.recirculations - 1;
            hdr.extra.setValid();
            hdr.extra.mark = meta.passes;
            recirculate_preserving_field_list(4);
        }
    }
}

control AgainDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
        packet.emit(hdr.extra);
    }
}

V1Switch(AgainParser(), NoVerify(), AgainIngress(), AgainEgress(), NoCompute(),
         AgainDeparser()) main;
