// Operators on bit and int of odd widths, casts, slices, concatenation, conditional expression.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>   op;
    bit<8>   a;
    bit<8>   b;
    bit<8>   c;
    bit<128> wide;
}

struct headers_t {
    op_t op;
}

struct meta_t { }

parser ArithmeticParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                        inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control ArithmeticIngress(inout headers_t hdr, inout meta_t meta,
                          inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        bit<8> a = hdr.op.a;
        bit<8> b = hdr.op.b;
        int<8> sa = (int<8>) a;
        int<8> sb = (int<8>) b;
        switch (hdr.op.op) {
            0: { hdr.op.c = a |+| b; }
            1: { hdr.op.c = a |-| b; }
            2: { hdr.op.c = (bit<8>) (sa |+| sb); }
            3: { hdr.op.c = (bit<8>) (sa |-| sb); }
            4: { hdr.op.c = (bit<8>) (sa >> b); }
            5: { hdr.op.c = a >> b; }
            6: { hdr.op.c = a << b; }
            7: { hdr.op.c = sa < sb ? 8w1 : 0; }
            8: { hdr.op.c = a < b ? 8w1 : 0; }
            9: { hdr.op.c = a[3:0] ++ b[7:4]; }
            10: { hdr.op.c[5:2] = a[3:0]; }
            11: { hdr.op.c = (bit<8>) (bit<3>) a; }
            12: { hdr.op.c = (bit<8>) (int<8>) (int<3>) (bit<3>) a; }
            13: { hdr.op.c = -a; }
            14: { hdr.op.c = ~a ^ (a & b) | (b & 0xf0); }
            15: { hdr.op.c = a * b; }
            16: { hdr.op.wide = hdr.op.wide * (bit<128>) a + (hdr.op.wide << 64); }
            17: { hdr.op.wide = hdr.op.wide >> b; }
            18: { hdr.op.c = hdr.op.wide[71:64]; }
            19: { hdr.op.wide[100:93] = a; }
            20: { hdr.op.c = (bit<8>) (bit<1>) (a == b && a != 0); }
            21: { hdr.op.c = (bit<8>) (int<8>) ((int<16>) sa * (int<16>) sb >> 4); }
            22: { hdr.op.wide = (bit<128>) (int<128>) sa; }
            23: { hdr.op.wide = hdr.op.wide |+| (hdr.op.wide << 1); }
            default: { hdr.op.c = 0xff; }
        }
    }
}

control ArithmeticEgress(inout headers_t hdr, inout meta_t meta,
                         inout standard_metadata_t standard_metadata) {
    apply { }
}

control ArithmeticDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(ArithmeticParser(), NoVerify(), ArithmeticIngress(), ArithmeticEgress(), NoCompute(),
         ArithmeticDeparser()) main;
