#include <core.p4>
#include <v1model.p4>

#define ONE 1

header h_t {
    bit<8>  a;
    bit<8>  b;
    bit<16> sum;
}
struct headers_t { h_t h; }
struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    state start { packet.extract(hdr.h); transition accept; }
}
control V(inout headers_t hdr, inout meta_t meta) { apply { } }
control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) {
    apply {
        hdr.h.sum = (bit<16>) (hdr.h.a + 2 * ONE);
        s.egress_spec = 1;
    }
}
control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t s) { apply { } }
control C(inout headers_t hdr, inout meta_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
