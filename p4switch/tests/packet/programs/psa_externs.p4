// The objects of PSA: each kind of packet uses one, and reports in `result`.
#include <core.p4>
#include <bmv2/psa.p4>

error { WrongChecksum }

header ask_t {
    bit<8> kind;
    bit<8> index;
    bit<16> operand;
    bit<32> result;
}
struct headers_t { ask_t ask; }
struct none_t { }
struct sent_t { bit<8> index; bit<16> operand; }

parser InParser(packet_in buffer, out headers_t hdr, inout none_t meta,
                in psa_ingress_parser_input_metadata_t istd, in none_t resubmit_meta,
                in none_t recirculate_meta) {
    InternetChecksum() sum;
    state start {
        buffer.extract(hdr.ask);
        transition select(hdr.ask.kind) {
            16: check;
            default: accept;
        }
    }
    state check {
        sum.add({hdr.ask.kind, hdr.ask.index, hdr.ask.operand});
        verify(sum.get() == hdr.ask.result[15:0], error.WrongChecksum);
        transition accept;
    }
}

control In(inout headers_t hdr, inout none_t meta, in psa_ingress_input_metadata_t istd,
           inout psa_ingress_output_metadata_t ostd) {
    Register<bit<16>, bit<8>>(4) plain;
    Register<int<16>, bit<8>>(4, -2) filled;
    Counter<bit<32>, bit<8>>(4, PSA_CounterType_t.PACKETS_AND_BYTES) counted;
    DirectCounter<bit<32>>(PSA_CounterType_t.PACKETS) hits;
    Meter<bit<8>>(4, PSA_MeterType_t.PACKETS) metered;
    DirectMeter(PSA_MeterType_t.PACKETS) entry_meter;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32) crc32;
    Hash<bit<16>>(PSA_HashAlgorithm_t.TARGET_DEFAULT) by_default;
    Hash<bit<32>>(PSA_HashAlgorithm_t.CRC32_CUSTOM) custom;
    Checksum<bit<16>>(PSA_HashAlgorithm_t.ONES_COMPLEMENT16) checksum;
    InternetChecksum() internet;
    Random<bit<32>>(7, 7) seven;
    ActionProfile(8) profile;
    ActionSelector(PSA_HashAlgorithm_t.CRC16, 8, 16) selector;

    action give(bit<32> value) { hdr.ask.result = value; }
    action give_color() {
        PSA_MeterColor_t color = entry_meter.execute();
        hits.count();
        hdr.ask.result = color == PSA_MeterColor_t.GREEN ? 32w0x60 : 32w0x6f;
    }
    table direct {
        key = { hdr.ask.index : exact; }
        actions = { give_color; NoAction; }
        psa_direct_counter = hits;
        psa_direct_meter = entry_meter;
        psa_idle_timeout = PSA_IdleTimeout_t.NOTIFY_CONTROL;
    }
    table shared {
        key = { hdr.ask.index : exact; }
        actions = { give; NoAction; }
        psa_implementation = profile;
    }
    table chosen {
        key = { hdr.ask.index : exact; hdr.ask.operand : selector; }
        actions = { give; NoAction; }
        psa_implementation = selector;
    }
    action tell(PSA_MeterColor_t color) {
        if (color == PSA_MeterColor_t.GREEN) {
            hdr.ask.result = 0x60;
        } else if (color == PSA_MeterColor_t.YELLOW) {
            hdr.ask.result = 0x79;
        } else {
            hdr.ask.result = 0x72;
        }
    }
    apply {
        send_to_port(ostd, (PortId_t) 1);
        bit<8> i = hdr.ask.index;
        if (hdr.ask.kind == 1) {
            hdr.ask.result = plain.read(i) ++ (bit<16>) filled.read(i);
            plain.write(i, hdr.ask.operand);
            filled.write(i, (int<16>) hdr.ask.operand);
        } else if (hdr.ask.kind == 2) {
            counted.count(i);
        } else if (hdr.ask.kind == 3) {
            tell(metered.execute(i));
        } else if (hdr.ask.kind == 4) {
            tell(metered.execute(i, PSA_MeterColor_t.YELLOW));
        } else if (hdr.ask.kind == 5) {
            hdr.ask.result = crc32.get_hash({i, hdr.ask.operand});
        } else if (hdr.ask.kind == 6) {
            hdr.ask.result = crc32.get_hash(32w1000, {i, hdr.ask.operand}, 32w16);
        } else if (hdr.ask.kind == 7) {
            hdr.ask.result = (bit<32>) by_default.get_hash({i, hdr.ask.operand});
        } else if (hdr.ask.kind == 8) {
            checksum.clear();
            checksum.update({hdr.ask.operand, 16w0x1234});
            checksum.update(16w0xf000);
            internet.add({hdr.ask.operand, 16w0x1234, 16w0xf000, 16w0x7777});
            internet.subtract({16w0x7777});
            hdr.ask.result = checksum.get() ++ internet.get();
        } else if (hdr.ask.kind == 9) {
            bit<16> state = internet.get_state();
            internet.set_state(0x4321);
            internet.add(hdr.ask.operand);
            hdr.ask.result = state ++ internet.get_state();
        } else if (hdr.ask.kind == 10) {
            hdr.ask.result = seven.read();
        } else if (hdr.ask.kind == 11) {
            direct.apply();
        } else if (hdr.ask.kind == 12) {
            shared.apply();
        } else if (hdr.ask.kind == 13) {
            chosen.apply();
        } else if (hdr.ask.kind == 14) {
            hdr.ask.result = custom.get_hash({i, hdr.ask.operand});
        }
        if (hdr.ask.kind == 17) {
            hdr.ask.result = (bit<32>) by_default.get_hash(hdr.ask.operand[11:0]);
        }
        if (istd.parser_error == error.WrongChecksum) {
            hdr.ask.result = 0xbad;
        }
        assert(ostd.egress_port == (PortId_t) 1);
    }
}

control InDeparser(packet_out buffer, out none_t clone_meta, out none_t resubmit_meta,
                   out none_t normal_meta, inout headers_t hdr, in none_t meta,
                   in psa_ingress_output_metadata_t istd) {
    Digest<sent_t>() seen;
    apply {
        if (hdr.ask.kind == 15) {
            seen.pack({hdr.ask.index, hdr.ask.operand});
        }
        if (hdr.ask.kind != 18) {
            buffer.emit(hdr.ask);
        }
    }
}

parser OutParser(packet_in buffer, out headers_t hdr, inout none_t meta,
                 in psa_egress_parser_input_metadata_t istd, in none_t normal_meta,
                 in none_t clone_i2e_meta, in none_t clone_e2e_meta) {
    state start { transition accept; }
}

control Out(inout headers_t hdr, inout none_t meta, in psa_egress_input_metadata_t istd,
            inout psa_egress_output_metadata_t ostd) {
    Counter<bit<32>, bit<8>>(1, PSA_CounterType_t.BYTES) leaving;
    apply { leaving.count(0); }
}

control OutDeparser(packet_out buffer, out none_t clone_meta, out none_t recirculate_meta,
                    inout headers_t hdr, in none_t meta,
                    in psa_egress_output_metadata_t istd,
                    in psa_egress_deparser_input_metadata_t edstd) {
    apply { }
}

IngressPipeline(InParser(), In(), InDeparser()) ingress;
EgressPipeline(OutParser(), Out(), OutDeparser()) egress;
PSA_Switch(ingress, PacketReplicationEngine(), egress, BufferingQueueingEngine()) main;
