// Registers, counters and direct counters.

#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8>  op;
    bit<8>  index;
    bit<32> value;
}

struct headers_t {
    op_t op;
}

struct meta_t { }

parser StateParser(packet_in packet, out headers_t hdr, inout meta_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.op);
        transition accept;
    }
}

#include "no_checksums.p4"

control StateIngress(inout headers_t hdr, inout meta_t meta,
                     inout standard_metadata_t standard_metadata) {
    register<bit<32>>(8) sums;
    register<int<8>>(4) signs;
    register<bit<1>>(4) seen;
    counter(4, CounterType.packets_and_bytes) packets;
    direct_counter(CounterType.packets_and_bytes) hits;

    action add() {
        bit<32> sum;
        sums.read(sum, (bit<32>) hdr.op.index);
        sum = sum + hdr.op.value;
        sums.write((bit<32>) hdr.op.index, sum);
        hdr.op.value = sum;
    }

    action negate() {
        int<8> sign;
        signs.read(sign, (bit<32>) hdr.op.index);
        sign = sign - 1;
        signs.write((bit<32>) hdr.op.index, sign);
        hdr.op.value = (bit<32>) (int<32>) sign;
        hits.count();
    }

    action mark() {
        bit<1> bit_seen;
        seen.read(bit_seen, (bit<32>) hdr.op.index);
        hdr.op.value = (bit<32>) bit_seen;
        seen.write((bit<32>) hdr.op.index, 1);
    }

    table operation {
        key = { hdr.op.op : exact; }
        actions = { add; negate; mark; NoAction; }
        const default_action = NoAction();
        counters = hits;
        size = 8;
    }

    apply {
        standard_metadata.egress_spec = 1;
        operation.apply();
        packets.count((bit<32>) hdr.op.index);
    }
}

control StateEgress(inout headers_t hdr, inout meta_t meta,
                    inout standard_metadata_t standard_metadata) {
    apply { }
}

control StateDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.op);
    }
}

V1Switch(StateParser(), NoVerify(), StateIngress(), StateEgress(), NoCompute(),
         StateDeparser()) main;
