// Header unions: the parser picks a member, ingress changes which one is valid.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
    bit<8> kind;
}

header short_t {
    bit<8> value;
}

header long_t {
    bit<16> value;
}

header_union either_t {
    short_t short;
    long_t  long;
}

struct headers_t {
    op_t        op;
    either_t    one;
    either_t[2] more;
}

struct meta_t { }

parser UnionParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.kind) {
            0: parse_short;
            1: parse_long;
            2: parse_stack;
            default: accept;
        }
    }
    state parse_short {
        packet.extract(hdr.one.short);
        transition accept;
    }
    state parse_long {
        packet.extract(hdr.one.long);
        transition accept;
    }
    state parse_stack {
        packet.extract(hdr.more.next.short);
        packet.extract(hdr.more.next.long);
        transition accept;
    }
}

#include "no_checksums.p4"

control UnionIngress(inout headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.op.op == 1) {
            hdr.one.long.setValid();
            hdr.one.long.value = 0xbeef;
        } else if (hdr.op.op == 2) {
            short_t replacement = { 0x99 };
            hdr.one.short = replacement;
        } else if (hdr.op.op == 3) {
            hdr.op.kind = hdr.one.isValid() ? 8w0xf1 : 0xf0;
        } else if (hdr.op.op == 4) {
            hdr.one = hdr.more[1];
            hdr.more[0].short.value = 0x12;
        } else if (hdr.op.op == 5) {
            hdr.one.short.setInvalid();
        } else if (hdr.op.op == 6) {
            hdr.more.pop_front(1);
        }
    }
}

control UnionEgress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply { }
}

control UnionDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
        packet.emit(hdr.one);
        packet.emit(hdr.more);
    }
}

V1Switch(UnionParser(), NoVerify(), UnionIngress(), UnionEgress(), NoCompute(),
         UnionDeparser()) main;
