// Functions, actions with directions, sub-controls, exit and return: copy-in, copy-out, order.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
    bit<8> a;
    bit<8> b;
    bit<8> c;
}

struct headers_t {
    op_t op;
}

struct meta_t {
    bit<8> order;
}

parser CallParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

bit<8> twice(in bit<8> x) {
    if (x == 0) {
        return 0xee;
    }
    return x + x;
}

bit<8> bump(inout bit<8> x) {
    x = x + 1;
    return x;
}

control Inner(inout bit<8> x, in bit<8> y) {
    bit<8> calls = 0;
    apply {
        calls = calls + 1;
        x = x + y + calls;
        if (y == 0) {
            return;
        }
        if (y == 0xff) {
            exit;
        }
        x = x ^ 0x80;
    }
}

control CallIngress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    Inner() first;
    Inner() second;

    action swap(inout bit<8> x, inout bit<8> y) {
        bit<8> t = x;
        x = y;
        y = t;
    }

    action leave(inout bit<8> x) {
        x = 0x44;
        exit;
    }

    action from_table(bit<8> value, bool flag, int<8> sign) {
        hdr.op.c = value;
        if (flag && sign < 0) {
            hdr.op.b = 0x99;
            return;
        }
        hdr.op.b = 0x11;
    }

    table choose {
        key = { hdr.op.a & 0x0f : exact @name("low"); }
        actions = { from_table; @defaultonly NoAction; }
        default_action = NoAction();
    }

    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.op.op == 0) {
            hdr.op.c = twice(hdr.op.a) + twice(hdr.op.b);
        } else if (hdr.op.op == 1) {
            hdr.op.c = bump(hdr.op.a) + (bump(hdr.op.a) << 4);
        } else if (hdr.op.op == 2) {
            swap(hdr.op.a, hdr.op.b);
        } else if (hdr.op.op == 3) {
            first.apply(hdr.op.a, hdr.op.b);
            first.apply(hdr.op.a, hdr.op.b);
            second.apply(hdr.op.c, 1);
        } else if (hdr.op.op == 4) {
            leave(hdr.op.a);
            hdr.op.b = 0x55;
        } else if (hdr.op.op == 5) {
            choose.apply();
        } else if (hdr.op.op == 6) {
            if (hdr.op.a == 1 && bump(hdr.op.b) == 5 || bump(hdr.op.b) == 9) {
                hdr.op.c = 1;
            }
        } else if (hdr.op.op == 7) {
            hdr.op.c = hdr.op.a == 0 ? bump(hdr.op.a) : bump(hdr.op.b);
        }
    }
}

control CallEgress(inout headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    apply { }
}

control CallDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(CallParser(), NoVerify(), CallIngress(), CallEgress(), NoCompute(),
         CallDeparser()) main;
