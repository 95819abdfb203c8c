// Multicast, clones and drops. The packet says what to do; egress writes down what it sees.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  op;
    bit<8>  argument;
    bit<8>  instance_type;
    bit<8>  egress_rid;
    bit<8>  kept;
    bit<8>  not_kept;
    bit<16> length;
}

struct headers_t {
    op_t op;
}

struct inner_t {
    @field_list(1)
    bit<8> deep;
}

struct meta_t {
    @field_list(1, 2)
    bit<8>  kept;
    bit<8>  not_kept;
    inner_t inner;
}

const bit<8> OP_UNICAST = 0;
const bit<8> OP_MULTICAST = 1;
const bit<8> OP_CLONE_INGRESS = 2;
const bit<8> OP_CLONE_EGRESS = 3;
const bit<8> OP_DROP_INGRESS = 4;
const bit<8> OP_DROP_EGRESS = 5;
const bit<8> OP_CLONE_AND_DROP = 6;
const bit<8> OP_MULTICAST_THEN_DROP = 7;
const bit<8> OP_TRUNCATE = 8;
const bit<8> OP_CLONE_NOTHING_KEPT = 9;

parser ReplicationParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                         inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        meta.not_kept = 0xcc;
        transition accept;
    }
}

#include "no_checksums.p4"

control ReplicationIngress(inout headers_t hdr, inout meta_t meta,
                           inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        meta.kept = 0xaa;
        meta.not_kept = 0xbb;
        meta.inner.deep = 0x11;
        if (hdr.op.op == OP_MULTICAST) {
            standard_metadata.mcast_grp = (bit<16>) hdr.op.argument;
        } else if (hdr.op.op == OP_CLONE_INGRESS) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.op.argument, 1);
            meta.kept = 0xac;
            hdr.op.argument = 0xff;
        } else if (hdr.op.op == OP_DROP_INGRESS) {
            mark_to_drop(standard_metadata);
        } else if (hdr.op.op == OP_CLONE_AND_DROP) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.op.argument, 2);
            mark_to_drop(standard_metadata);
        } else if (hdr.op.op == OP_MULTICAST_THEN_DROP) {
            standard_metadata.mcast_grp = (bit<16>) hdr.op.argument;
            mark_to_drop(standard_metadata);
        } else if (hdr.op.op == OP_TRUNCATE) {
            truncate((bit<32>) hdr.op.argument);
            truncate(8);  // the smaller counts
        } else if (hdr.op.op == OP_CLONE_NOTHING_KEPT) {
            clone(CloneType.I2E, (bit<32>) hdr.op.argument);
        }
    }
}

control ReplicationEgress(inout headers_t hdr, inout meta_t meta,
                          inout standard_metadata_t standard_metadata) {
    apply {
        hdr.op.instance_type = (bit<8>) standard_metadata.instance_type;
        hdr.op.egress_rid = (bit<8>) standard_metadata.egress_rid;
        hdr.op.kept = meta.kept + meta.inner.deep;
        hdr.op.not_kept = meta.not_kept;
        hdr.op.length = (bit<16>) standard_metadata.packet_length;
        if (standard_metadata.instance_type == 0) {
            if (hdr.op.op == OP_CLONE_EGRESS) {
                clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.op.argument, 2);
            } else if (hdr.op.op == OP_DROP_EGRESS) {
                mark_to_drop(standard_metadata);
            }
        }
    }
}

control ReplicationDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(ReplicationParser(), NoVerify(), ReplicationIngress(), ReplicationEgress(), NoCompute(),
         ReplicationDeparser()) main;
