// An aggregation switch in small: 256 register lanes by a macro, a bitmap, a count, multicast.

#include <core.p4>
#include <v1model.p4>

#define EACH_4(M, n) M(n##0) M(n##1) M(n##2) M(n##3)
#define EACH_16(M, n) EACH_4(M, n##0) EACH_4(M, n##1) EACH_4(M, n##2) EACH_4(M, n##3)
#define EACH_64(M, n) EACH_16(M, n##0) EACH_16(M, n##1) EACH_16(M, n##2) EACH_16(M, n##3)
#define EACH(M) EACH_64(M, 0) EACH_64(M, 1) EACH_64(M, 2) EACH_64(M, 3)

#define FIELD(n) bit<32> v##n;
#define REGISTER(n) register<bit<32>>(16) lane_##n;
#define ADD(n) \
    lane_##n.read(sum, slot); \
    sum = hdr.values.v##n + (fresh ? 32w0 : sum); \
    lane_##n.write(slot, sum); \
    hdr.values.v##n = sum;

header op_t {
    bit<8>  slot;
    bit<8>  workers;
    bit<32> bitmap;
}

header values_t {
    EACH(FIELD)
}

struct headers_t {
    op_t     op;
    values_t values;
}

struct meta_t { }

parser LaneParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        packet.extract(hdr.values);
        transition accept;
    }
}

#include "no_checksums.p4"

control LaneIngress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    register<bit<32>>(16) bitmaps;
    register<bit<8>>(16) counts;
    EACH(REGISTER)

    apply {
        bit<32> slot = (bit<32>) hdr.op.slot;
        bit<32> bitmap;
        bit<8> count;
        bit<32> sum;
        bitmaps.read(bitmap, slot);
        counts.read(count, slot);
        if (bitmap & hdr.op.bitmap != 0) {
            mark_to_drop(standard_metadata);
        } else {
            bool fresh = count == 0;
            EACH(ADD)
            count = count + 1;
            bitmap = bitmap | hdr.op.bitmap;
            if (count == hdr.op.workers) {
                count = 0;
                bitmap = 0;
                standard_metadata.mcast_grp = 1;
            } else {
                mark_to_drop(standard_metadata);
            }
            bitmaps.write(slot, bitmap);
            counts.write(slot, count);
        }
    }
}

control LaneEgress(inout headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    apply { }
}

control LaneDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
        packet.emit(hdr.values);
    }
}

V1Switch(LaneParser(), NoVerify(), LaneIngress(), LaneEgress(), NoCompute(),
         LaneDeparser()) main;
