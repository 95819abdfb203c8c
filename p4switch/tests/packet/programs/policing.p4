// Meters, direct meters, a selector, a digest, a value set: what needs a control plane to test.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  op;
    bit<8>  index;
    bit<16> flow;
    bit<8>  color;
    bit<8>  member;
}

struct headers_t {
    op_t op;
}

struct meta_t {
    bit<2> color;
}

struct learned_t {
    bit<16> flow;
    bit<9>  port;
    bool    odd;
    int<8>  sign;
}

struct range_key_t {
    @match(ternary)
    bit<8> op;
    @match(range)
    bit<8> index;
}

parser PolicingParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                      inout standard_metadata_t standard_metadata) {
    value_set<bit<8>>(4) special;
    value_set<range_key_t>(2) pairs;

    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.op) {
            special: mark;
            default: more;
        }
    }
    state mark {
        hdr.op.member = 0x51;
        transition accept;
    }
    state more {
        transition select(hdr.op.op, hdr.op.index) {
            pairs: mark_pair;
            default: accept;
        }
    }
    state mark_pair {
        hdr.op.member = 0x52;
        transition accept;
    }
}

#include "no_checksums.p4"

control PolicingIngress(inout headers_t hdr, inout meta_t meta,
                        inout standard_metadata_t standard_metadata) {
    meter(4, MeterType.packets) by_packets;
    meter(4, MeterType.bytes) by_bytes;
    direct_meter<bit<2>>(MeterType.packets) by_entry;
    action_selector(HashAlgorithm.identity, 8, 16) members;
    action_profile(4) profile;

    action police() {
        by_entry.read(meta.color);
        hdr.op.color = (bit<8>) meta.color;
    }

    action set_member(bit<8> value) {
        hdr.op.member = value;
    }

    table policed {
        key = { hdr.op.flow : exact; }
        actions = { police; NoAction; }
        meters = by_entry;
        default_action = NoAction();
        size = 4;
    }

    table balanced {
        key = {
            hdr.op.index : exact;
            hdr.op.flow : selector;
        }
        actions = { set_member; NoAction; }
        implementation = members;
        default_action = NoAction();
        size = 4;
    }

    table indirect {
        key = { hdr.op.index : exact; }
        actions = { set_member; NoAction; }
        implementation = profile;
        default_action = set_member(0xdd);
        support_timeout = true;
    }

    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.op.op == 0) {
            by_packets.execute_meter((bit<32>) hdr.op.index, meta.color);
            hdr.op.color = (bit<8>) meta.color;
        } else if (hdr.op.op == 1) {
            by_bytes.execute_meter((bit<32>) hdr.op.index, meta.color);
            hdr.op.color = (bit<8>) meta.color;
        } else if (hdr.op.op == 2) {
            policed.apply();
        } else if (hdr.op.op == 3) {
            balanced.apply();
        } else if (hdr.op.op == 4) {
            indirect.apply();
        } else if (hdr.op.op == 5) {
            bool odd = hdr.op.flow[0:0] == 1;
            digest<learned_t>(1, { hdr.op.flow, standard_metadata.ingress_port, odd, -1 });
        } else if (hdr.op.op == 6) {
            random(hdr.op.member, 10, 12);
        } else if (hdr.op.op == 7) {
            log_msg("flow {} index {}", { hdr.op.flow, hdr.op.index });
            assert(hdr.op.index == 0);
        }
    }
}

control PolicingEgress(inout headers_t hdr, inout meta_t meta,
                       inout standard_metadata_t standard_metadata) {
    apply { }
}

control PolicingDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(PolicingParser(), NoVerify(), PolicingIngress(), PolicingEgress(), NoCompute(),
         PolicingDeparser()) main;
