// Header stacks: next, last and lastIndex in the parser, run-time indices, push and pop.
// Packet: op, then labels until one has bottom set; op says what happens to them.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
    bit<8> index;
}

header label_t {
    bit<7> value;
    bit<1> bottom;
}

struct headers_t {
    op_t       op;
    label_t[4] labels;
}

struct meta_t {
    bit<32> last_index;
    bit<7>  last_value;
}

parser StackParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.op) {
            7: parse_shifted;
            8: parse_popped;
            default: parse_label;
        }
    }
    state parse_shifted {
        packet.extract(hdr.labels.next);
        hdr.labels.push_front(2);
        packet.extract(hdr.labels.next);
        hdr.op.index = (bit<8>) hdr.labels.lastIndex;
        transition accept;
    }
    state parse_popped {
        packet.extract(hdr.labels.next);
        packet.extract(hdr.labels.next);
        hdr.labels.pop_front(1);
        packet.extract(hdr.labels.next);
        hdr.op.index = (bit<8>) hdr.labels.lastIndex;
        transition accept;
    }
    state parse_label {
        packet.extract(hdr.labels.next);
        meta.last_index = hdr.labels.lastIndex;
        meta.last_value = hdr.labels.last.value;
        transition select(hdr.labels.last.bottom) {
            0: parse_label;
            1: accept;
        }
    }
}

#include "no_checksums.p4"

control StackIngress(inout headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 2;
        if (standard_metadata.parser_error == error.StackOutOfBounds) {
            standard_metadata.egress_spec = 3;
        } else if (hdr.op.op == 1) {
            hdr.labels.push_front(2);
            hdr.labels[0].setValid();
            hdr.labels[0] = { 0x55, 0 };
            hdr.labels[1] = { 0x2a, 0 };
        } else if (hdr.op.op == 2) {
            hdr.labels.pop_front(1);
        } else if (hdr.op.op == 3) {
            hdr.labels[hdr.op.index].value = 0x11;
        } else if (hdr.op.op == 4) {
            hdr.op.index = (bit<8>) meta.last_index;
            hdr.labels[0].value = meta.last_value;
        } else if (hdr.op.op == 5) {
            label_t[4] copy = hdr.labels;
            hdr.labels[0].value = 0;
            if (copy == hdr.labels) {
                hdr.op.index = 0xff;
            }
            hdr.labels[3] = copy[1];
        } else if (hdr.op.op == 6) {
            hdr.labels.pop_front(4);
        }
    }
}

control StackEgress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply { }
}

control StackDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(StackParser(), NoVerify(), StackIngress(), StackEgress(), NoCompute(),
         StackDeparser()) main;
