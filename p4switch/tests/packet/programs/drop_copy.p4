/* mark_to_drop of a copy of standard_metadata, which a function or an action may be given. */
#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
}

struct headers_t {
    op_t op;
}

struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

void drop_copied_back(inout standard_metadata_t copy) {
    mark_to_drop(copy);
}

void drop_copy_only(in standard_metadata_t standard) {
    standard_metadata_t copy = standard;
    mark_to_drop(copy);
}

control I(inout headers_t hdr, inout meta_t meta,
          inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 2;
        if (hdr.op.op == 1) {
            drop_copied_back(standard_metadata);
        } else if (hdr.op.op == 2) {
            drop_copy_only(standard_metadata);
        } else if (hdr.op.op == 3) {
            standard_metadata.mcast_grp = 1;
            drop_copied_back(standard_metadata);
            standard_metadata.egress_spec = 3;
        }
    }
}

control E(inout headers_t hdr, inout meta_t meta,
          inout standard_metadata_t standard_metadata) {
    apply { }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
