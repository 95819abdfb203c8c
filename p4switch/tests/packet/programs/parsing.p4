// lookahead, advance, length, sub-parsers, select on masks, ranges and tuples, verify, loops.

#include <core.p4>
#include <v1model.p4>

error { TooOld }

header kind_t {
    bit<8> kind;
    bit<8> seen;
}

header item_t {
    bit<8> tag;
    bit<8> value;
}

struct headers_t {
    kind_t kind;
    item_t item;
    item_t second;
}

struct meta_t {
    bit<8>  peeked;
    bit<32> bytes;
}

struct pair_t {
    bit<4> high;
    bit<4> low;
}

parser ItemParser(packet_in packet, out item_t item, inout bit<8> count) {
    state start {
        count = count + 1;
        packet.extract(item);
        verify(item.tag != 0, error.TooOld);
        transition accept;
    }
}

parser ParsingParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    ItemParser() items;
    bit<8> count = 0x10;

    state start {
        packet.extract(hdr.kind);
        meta.bytes = packet.length();
        transition select(hdr.kind.kind) {
            0: peek;
            1: skip;
            2: sub;
            0x20 &&& 0xf0: masked;
            0x30 .. 0x35: ranged;
            0x40: both;
            0x50: explicit;
            0x60: forever;
        }
    }
    state peek {
        meta.peeked = packet.lookahead<bit<8>>();
        pair_t pair = packet.lookahead<pair_t>();
        hdr.kind.seen = pair.low ++ pair.high;
        transition accept;
    }
    state skip {
        packet.advance(16);
        packet.extract(hdr.item);
        transition accept;
    }
    state sub {
        items.apply(packet, hdr.item, count);
        items.apply(packet, hdr.second, count);
        hdr.kind.seen = count;
        transition accept;
    }
    state masked {
        hdr.kind.seen = 0x21;
        transition accept;
    }
    state ranged {
        hdr.kind.seen = 0x31;
        transition accept;
    }
    state both {
        packet.extract(hdr.item);
        transition select(hdr.item.tag, hdr.item.value) {
            (1, 2): masked;
            (1, _): ranged;
            (_, 7): sub;
            default: accept;
        }
    }
    state explicit {
        hdr.kind.seen = 0x51;
        transition reject;
    }
    state forever {
        transition forever;
    }
}

#include "no_checksums.p4"

control ParsingIngress(inout headers_t hdr, inout meta_t meta,
                       inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        if (standard_metadata.parser_error == error.NoMatch) {
            standard_metadata.egress_spec = 2;
        } else if (standard_metadata.parser_error == error.PacketTooShort) {
            standard_metadata.egress_spec = 3;
        } else if (standard_metadata.parser_error == error.TooOld) {
            standard_metadata.egress_spec = 4;
        } else if (standard_metadata.parser_error == error.ParserTimeout) {
            standard_metadata.egress_spec = 5;
        } else if (hdr.kind.kind == 0) {
            hdr.kind.kind = meta.peeked + (bit<8>) meta.bytes;
        }
    }
}

control ParsingEgress(inout headers_t hdr, inout meta_t meta,
                      inout standard_metadata_t standard_metadata) {
    apply { }
}

control ParsingDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.kind);
        packet.emit(hdr.item);
        packet.emit(hdr.second);
    }
}

V1Switch(ParsingParser(), NoVerify(), ParsingIngress(), ParsingEgress(), NoCompute(),
         ParsingDeparser()) main;
