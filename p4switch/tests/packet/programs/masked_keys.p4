// Keys `field & constant`: BMv2 lays the mask over the values of entries, too.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  table_number;
    bit<8>  a;
    bit<16> b;
    bit<8>  result;
}

struct headers_t {
    op_t op;
}

struct meta_t { }

parser MaskParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control MaskIngress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    action set(bit<8> value) {
        hdr.op.result = value;
    }

    action miss() {
        hdr.op.result = 0xff;
    }

    table exact_table {
        key = {
            hdr.op.a & 0x0f   : exact @name("a");
            0x00ff & hdr.op.b : exact @name("b");
        }
        actions = { set; miss; }
        default_action = miss();
    }

    table ternary_table {
        key = {
            hdr.op.a & 0x0f   : ternary @name("a");
            hdr.op.b & 0x0ff0 : ternary @name("b");
        }
        actions = { set; miss; }
        default_action = miss();
    }

    table lpm_table {
        key = { hdr.op.b & 0x0fff : lpm @name("b"); }
        actions = { set; miss; }
        default_action = miss();
    }

    table constant_table {
        key = { hdr.op.a & 0x0f : exact @name("a"); }
        actions = { set; miss; }
        const default_action = miss();
        const entries = {
            0x31 : set(1);
        }
    }

    // No mask, but a calculation like others: an entry with bits outside of it is never hit.
    table calculated_table {
        key = { (hdr.op.a + 1) & 0x0f : exact @name("sum"); }
        actions = { set; miss; }
        default_action = miss();
    }

    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.op.table_number == 0) {
            exact_table.apply();
        } else if (hdr.op.table_number == 1) {
            ternary_table.apply();
        } else if (hdr.op.table_number == 2) {
            lpm_table.apply();
        } else if (hdr.op.table_number == 3) {
            constant_table.apply();
        } else {
            calculated_table.apply();
        }
    }
}

control MaskEgress(inout headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    apply { }
}

control MaskDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(MaskParser(), NoVerify(), MaskIngress(), MaskEgress(), NoCompute(),
         MaskDeparser()) main;
