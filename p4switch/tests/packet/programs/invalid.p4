/* Fields of headers that are not valid, as in BMv2: setInvalid keeps them, setValid clears them. */
#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
}

header item_t {
    bit<8> value;
}

header wide_t {
    bit<96> value;
}

header result_t {
    bit<8> first;
    bit<8> second;
    bit<8> third;
}

header_union either_t {
    item_t item;
    wide_t wide;
}

struct headers_t {
    op_t op;
    item_t item;
    wide_t wide;
    item_t[3] items;
    either_t either;
    result_t result;
}

struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        packet.extract(hdr.item);
        packet.extract(hdr.wide);
        transition select(hdr.op.op) {
            4 &&& 0xfc: parse_items;
            8 &&& 0xfc: parse_either;
            default: accept;
        }
    }
    state parse_items {
        packet.extract(hdr.items[0]);
        packet.extract(hdr.items[1]);
        packet.extract(hdr.items[2]);
        transition accept;
    }
    state parse_either {
        packet.extract(hdr.either.item);
        transition accept;
    }
}

#include "no_checksums.p4"

control I(inout headers_t hdr, inout meta_t meta,
          inout standard_metadata_t standard_metadata) {
    counter(256, CounterType.packets) by_item;

    apply {
        standard_metadata.egress_spec = 2;
        hdr.result.setValid();
        if (hdr.op.op == 0) {
            // A counter after the header is gone, as in p4lang's tutorial on P4Runtime.
            hdr.item.setInvalid();
            hdr.wide.setInvalid();
            by_item.count((bit<32>) hdr.item.value);
            hdr.result = { hdr.item.value, hdr.wide.value[95:88], hdr.wide.value[7:0] };
        } else if (hdr.op.op == 1) {
            hdr.item.setInvalid();
            hdr.item.value = 0x77;
            hdr.result.first = hdr.item.value;
            hdr.item.setValid();
            hdr.result.second = hdr.item.value;
        } else if (hdr.op.op == 2) {
            // Valid already: nothing changes.
            hdr.item.setValid();
            hdr.wide.setValid();
            hdr.result = { hdr.item.value, hdr.wide.value[95:88], hdr.wide.value[7:0] };
        } else if (hdr.op.op == 3) {
            hdr.wide = {#};
            hdr.result.first = hdr.wide.value[95:88];
            hdr.item = hdr.items[0];
            hdr.result.second = hdr.item.value;
        } else if (hdr.op.op == 4) {
            hdr.items.push_front(1);
            hdr.result = { hdr.items[0].value, hdr.items[1].value, hdr.items[2].value };
        } else if (hdr.op.op == 5) {
            hdr.items.push_front(2);
            hdr.result = { hdr.items[0].value, hdr.items[1].value, hdr.items[2].value };
        } else if (hdr.op.op == 6) {
            hdr.items.pop_front(1);
            hdr.result = { hdr.items[0].value, hdr.items[1].value, hdr.items[2].value };
        } else if (hdr.op.op == 7) {
            hdr.items.pop_front(3);
            hdr.result = { hdr.items[0].value, hdr.items[1].value, hdr.items[2].value };
        } else if (hdr.op.op == 8) {
            hdr.either.wide.setValid();
            hdr.result = { hdr.either.item.value, hdr.either.wide.value[7:0], 0 };
        } else if (hdr.op.op == 9) {
            hdr.either.item.setInvalid();
            hdr.result.first = hdr.either.item.value;
            hdr.either.item.setValid();
            hdr.result.second = hdr.either.item.value;
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
