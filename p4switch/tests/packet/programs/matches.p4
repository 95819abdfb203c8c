// Every match kind, entries in the program with and without priorities, hit, miss, action_run.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  table_number;
    bit<8>  a;
    bit<16> b;
    bit<8>  result;
    bit<8>  flags;
}

struct headers_t {
    op_t op;
}

struct meta_t { }

parser MatchParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control MatchIngress(inout headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    action set(bit<8> value) {
        hdr.op.result = value;
    }

    action miss() {
        hdr.op.result = 0xff;
    }

    table exact_table {
        key = { hdr.op.a : exact; hdr.op.b : exact; }
        actions = { set; miss; }
        default_action = miss();
    }

    table lpm_table {
        key = { hdr.op.a : exact; hdr.op.b : lpm; }
        actions = { set; miss; }
        default_action = miss();
    }

    table ternary_table {
        key = { hdr.op.a : ternary; hdr.op.b : ternary @name("second"); }
        actions = { set; miss; }
        default_action = miss();
    }

    table range_table {
        key = { hdr.op.b : range; hdr.op.a : lpm; }
        actions = { set; miss; }
        default_action = miss();
    }

    table optional_table {
        key = { hdr.op.a : optional; hdr.op.b : optional; }
        actions = { set; miss; }
        default_action = miss();
    }

    table constant_table {
        key = { hdr.op.a : ternary; hdr.op.b : range; }
        actions = { set; miss; }
        const default_action = miss();
        const entries = {
            (0x10 &&& 0xf0, 5 .. 9) : set(1);
            (0x10 &&& 0xf0, _)      : set(2);
            (_, 7)                  : set(3);
        }
    }

    table priority_table {
        key = { hdr.op.a : ternary; }
        actions = { set; miss; }
        default_action = miss();
        largest_priority_wins = false;
        entries = {
            const priority = 30: 0x00 &&& 0x00 : set(30);
            priority = 20: 0x01 &&& 0x01 : set(20);
            priority = 10: 0x03 &&& 0x03 : set(10);
        }
    }

    table no_key {
        actions = { set; miss; }
        default_action = set(0x77);
    }

    table run_table {
        key = { hdr.op.a : exact; }
        actions = { set; miss; NoAction; }
        default_action = NoAction();
        const entries = {
            1 : set(1);
            2 : miss();
        }
    }

    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.op.table_number == 0) {
            exact_table.apply();
        } else if (hdr.op.table_number == 1) {
            lpm_table.apply();
        } else if (hdr.op.table_number == 2) {
            ternary_table.apply();
        } else if (hdr.op.table_number == 3) {
            range_table.apply();
        } else if (hdr.op.table_number == 4) {
            optional_table.apply();
        } else if (hdr.op.table_number == 5) {
            constant_table.apply();
        } else if (hdr.op.table_number == 6) {
            priority_table.apply();
        } else if (hdr.op.table_number == 7) {
            no_key.apply();
        } else {
            if (run_table.apply().hit) {
                hdr.op.flags = 0x10;
            }
            if (run_table.apply().miss) {
                hdr.op.flags = hdr.op.flags | 0x20;
            }
            switch (run_table.apply().action_run) {
                set: { hdr.op.flags = hdr.op.flags | 1; }
                miss: { hdr.op.flags = hdr.op.flags | 2; }
                default: { hdr.op.flags = hdr.op.flags | 4; }
            }
        }
    }
}

control MatchEgress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply { }
}

control MatchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(MatchParser(), NoVerify(), MatchIngress(), MatchEgress(), NoCompute(),
         MatchDeparser()) main;
