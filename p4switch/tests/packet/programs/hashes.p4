// hash with every algorithm, checksums over the payload, an inverted check.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  op;
    bit<72> data;
    bit<32> result;
    bit<16> checksum;
}

header absent_t {
    bit<16> checksum;
}

struct headers_t {
    op_t     op;
    absent_t absent;
}

struct meta_t { }

parser HashParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

control HashVerify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum_with_payload(hdr.op.op == 9, { hdr.op.data }, hdr.op.checksum,
                                     HashAlgorithm.csum16);
        // a checksum in a header that is not valid is not verified
        verify_checksum(hdr.op.op == 9, { 16w5 }, hdr.absent.checksum, HashAlgorithm.csum16);
    }
}

control HashIngress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply {
        standard_metadata.egress_spec = 1;
        if (hdr.op.op == 0) {
            hash(hdr.op.result, HashAlgorithm.crc32, 32w0, { hdr.op.data }, 64w0x100000000);
        } else if (hdr.op.op == 1) {
            hash(hdr.op.result, HashAlgorithm.crc16, 32w0, { hdr.op.data }, 32w0x10000);
        } else if (hdr.op.op == 2) {
            hash(hdr.op.result, HashAlgorithm.csum16, 32w0, { hdr.op.data }, 32w0x10000);
        } else if (hdr.op.op == 3) {
            hash(hdr.op.result, HashAlgorithm.xor16, 32w0, { hdr.op.data }, 32w0x10000);
        } else if (hdr.op.op == 4) {
            hash(hdr.op.result, HashAlgorithm.identity, 32w0,
                 { hdr.op.data[15:0], hdr.op.data[3:0] }, 64w0x100000000);
        } else if (hdr.op.op == 5) {
            hash(hdr.op.result, HashAlgorithm.crc32, 32w1000, { hdr.op.data }, 32w10);
        } else if (hdr.op.op == 6) {
            hash(hdr.op.result, HashAlgorithm.crc32, 32w7, { hdr.op.data }, 32w0);
        } else if (hdr.op.op == 7) {
            hash(hdr.op.result, HashAlgorithm.crc32_custom, 32w0, { hdr.op.data },
                 64w0x100000000);
        } else if (hdr.op.op == 9) {
            hdr.op.result = (bit<32>) standard_metadata.checksum_error;
        }
    }
}

control HashEgress(inout headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    apply { }
}

control HashCompute(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum_with_payload(hdr.op.op == 8, { hdr.op.data }, hdr.op.checksum,
                                     HashAlgorithm.csum16);
    }
}

control HashDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(HashParser(), HashVerify(), HashIngress(), HashEgress(), HashCompute(),
         HashDeparser()) main;
