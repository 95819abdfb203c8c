// A header with a varbit: options of an IPv4-like header, all the errors extract can meet.

#include <core.p4>
#include <v1model.p4>

header fixed_t {
    bit<8> bits;
    bit<8> error_seen;
}

header options_t {
    bit<4>      tag;
    varbit<32>  data;
    bit<4>      end;
}

struct headers_t {
    fixed_t   fixed;
    options_t first;
    options_t second;
}

struct meta_t { }

parser VarbitParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.fixed);
        packet.extract(hdr.first, (bit<32>) hdr.fixed.bits);
        transition accept;
    }
}

#include "no_checksums.p4"

control VarbitIngress(inout headers_t hdr, inout meta_t meta,
                      inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        if (standard_metadata.parser_error == error.PacketTooShort) {
            hdr.fixed.error_seen = 1;
        } else if (standard_metadata.parser_error == error.HeaderTooShort) {
            hdr.fixed.error_seen = 2;
        } else if (standard_metadata.parser_error == error.ParserInvalidArgument) {
            hdr.fixed.error_seen = 3;
        } else {
            hdr.second = hdr.first;
            hdr.second.tag = 0xf;
            if (hdr.first.data == hdr.second.data && hdr.first != hdr.second) {
                hdr.fixed.error_seen = 0xaa;
            }
            hdr.first.setInvalid();
        }
    }
}

control VarbitEgress(inout headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    apply { }
}

control VarbitDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.fixed);
        packet.emit(hdr.first);
        packet.emit(hdr.second);
    }
}

V1Switch(VarbitParser(), NoVerify(), VarbitIngress(), VarbitEgress(), NoCompute(),
         VarbitDeparser()) main;
