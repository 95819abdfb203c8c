// for loops: over counts, over ranges, with break and continue, nested.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  op;
    bit<8>  count;
    bit<16> sum;
}

struct headers_t {
    op_t op;
}

struct meta_t { }

parser LoopParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control LoopIngress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        bit<8> n = hdr.op.count;
        if (hdr.op.op == 0) {
            for (bit<8> i = 0; i < n; i = i + 1) {
                hdr.op.sum += (bit<16>) i;
            }
        } else if (hdr.op.op == 1) {
            for (bit<16> i in 1 .. 5) {
                if (i == 2) {
                    continue;
                }
                if (i == 4) {
                    break;
                }
                hdr.op.sum = hdr.op.sum << 4 | i;
            }
        } else if (hdr.op.op == 2) {
            for (bit<8> i = 0; i < n; i = i + 1) {
                for (bit<8> j = 0; j < 10; j = j + 1) {
                    if (j == i) {
                        break;
                    }
                    hdr.op.sum = hdr.op.sum + 1;
                }
            }
        }
    }
}

control LoopEgress(inout headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    apply { }
}

control LoopDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(LoopParser(), NoVerify(), LoopIngress(), LoopEgress(), NoCompute(),
         LoopDeparser()) main;
