/* Shifts of integers without width by action parameters: the context gives the width. */
#include <core.p4>
#include <v1model.p4>

header worker_t {
    bit<8> id;
    bit<16> mask;
    bit<16> below;
}

struct headers_t {
    worker_t worker;
}

struct meta_t { }

parser P(packet_in packet, out headers_t hdr, inout meta_t m,
         inout standard_metadata_t s) {
    state start {
        packet.extract(hdr.worker);
        transition accept;
    }
}

#include "no_checksums.p4"

control I(inout headers_t hdr, inout meta_t m, inout standard_metadata_t s) {
    action worker(bit<8> rank) {
        hdr.worker.mask = hdr.worker.mask | 1 << rank;
        hdr.worker.below = (1 << rank) - 1;
    }

    table workers {
        key = {
            hdr.worker.id : exact;
        }
        actions = {
            worker;
            NoAction;
        }
        const default_action = NoAction();
    }

    apply {
        workers.apply();
        s.egress_spec = 2;
    }
}

control E(inout headers_t hdr, inout meta_t m, inout standard_metadata_t s) {
    apply { }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.worker);
    }
}

V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
