/* The deprecated forms of clone, resubmit and recirculate: the metadata in their data are kept. */
#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
}

header seen_t {
    bit<8> keep;
    bit<8> inner;
    bit<8> other;
    bit<16> port;
}

struct headers_t {
    op_t op;
    seen_t seen;
}

struct inner_t {
    bit<8> value;
    bit<8> more;
}

struct meta_t {
    bit<8> keep;
    bit<8> other;
    inner_t inner;
}

parser P(packet_in packet, out headers_t hdr, inout meta_t meta,
         inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control Again(inout headers_t hdr, inout meta_t meta,
              inout standard_metadata_t standard_metadata) {
    apply {
        if (hdr.op.op == 2) {
            resubmit({ meta.keep, meta.inner.more });
        }
    }
}

control I(inout headers_t hdr, inout meta_t meta,
          inout standard_metadata_t standard_metadata) {
    Again() again;

    apply {
        if (standard_metadata.instance_type == 0) {
            meta.keep = 7;
            meta.other = 8;
            meta.inner = { 9, 10 };
            again.apply(hdr, meta, standard_metadata);
            if (hdr.op.op == 1) {
                clone3(CloneType.I2E, 5, { meta.keep, standard_metadata.ingress_port });
                mark_to_drop(standard_metadata);
            } else if (hdr.op.op == 5) {
                clone3(CloneType.I2E, 5, meta);
                // As in BMv2, the list has the values of the end of ingress.
                meta.keep = 17;
                mark_to_drop(standard_metadata);
            } else if (hdr.op.op == 6) {
                clone3(CloneType.I2E, 5, { });
                mark_to_drop(standard_metadata);
            } else {
                standard_metadata.egress_spec = 3;
            }
        } else {
            standard_metadata.egress_spec = 4;
        }
    }
}

control E(inout headers_t hdr, inout meta_t meta,
          inout standard_metadata_t standard_metadata) {
    apply {
        if (hdr.op.op == 3 && meta.other == 8) {
            recirculate({ meta.inner, standard_metadata.ingress_port });
        } else if (standard_metadata.instance_type == 0 && hdr.op.op == 4) {
            clone3(CloneType.E2E, 5, { meta.keep, meta.other });
        } else {
            hdr.seen.setValid();
            hdr.seen = {
                meta.keep, meta.inner.value + meta.inner.more, meta.other,
                (bit<16>) standard_metadata.ingress_port
            };
        }
    }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(P(), NoVerify(), I(), E(), NoCompute(), D()) main;
