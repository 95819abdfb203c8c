// Every way of a packet through a PSA switch, with the metadata that it takes along.
#include <core.p4>
#include <psa.p4>

header step_t {
    bit<8> kind;    // what ingress does
    bit<8> port;
    bit<8> told;    // by the metadata of the last way
    bit<8> path;    // PSA_PacketPath_t in egress
    bit<8> replica;
    bit<8> class_of_service;
}
struct headers_t { step_t step; }
struct metadata_t { bit<8> told; }
struct normal_t { bit<8> told; }
struct clone_t { bit<8> told; }
struct again_t { bit<8> told; }

parser InParser(packet_in buffer, out headers_t hdr, inout metadata_t meta,
                in psa_ingress_parser_input_metadata_t istd, in again_t resubmit_meta,
                in again_t recirculate_meta) {
    state start {
        buffer.extract(hdr.step);
        meta.told = 0;
        transition select(istd.packet_path) {
            PSA_PacketPath_t.RESUBMIT: resubmitted;
            PSA_PacketPath_t.RECIRCULATE: recirculated;
            default: accept;
        }
    }
    state resubmitted {
        meta.told = resubmit_meta.told;
        transition accept;
    }
    state recirculated {
        meta.told = recirculate_meta.told;
        transition accept;
    }
}

control In(inout headers_t hdr, inout metadata_t meta, in psa_ingress_input_metadata_t istd,
           inout psa_ingress_output_metadata_t ostd) {
    apply {
        ostd.class_of_service = (ClassOfService_t) hdr.step.class_of_service;
        if (istd.parser_error != error.NoError) {
            hdr.step.setValid();
            hdr.step.told = 0xee;
            send_to_port(ostd, (PortId_t) 9);
            exit;
        }
        bool again = istd.packet_path == PSA_PacketPath_t.RESUBMIT
            || istd.packet_path == PSA_PacketPath_t.RECIRCULATE;
        if (again) {
            hdr.step.told = meta.told;
            send_to_port(ostd, (PortId_t) (bit<32>) hdr.step.port);
        } else if (hdr.step.kind == 1) {
            send_to_port(ostd, (PortId_t) (bit<32>) hdr.step.port);
        } else if (hdr.step.kind == 2) {
            multicast(ostd, (MulticastGroup_t) (bit<32>) hdr.step.port);
        } else if (hdr.step.kind == 3 || hdr.step.kind == 4) {
            ostd.clone = true;
            ostd.clone_session_id = (CloneSessionId_t) 5;
            if (hdr.step.kind == 3) {
                send_to_port(ostd, (PortId_t) (bit<32>) hdr.step.port);
            }
        } else if (hdr.step.kind == 5) {
            ostd.drop = false;
            ostd.resubmit = true;
        } else if (hdr.step.kind == 6) {
            send_to_port(ostd, PSA_PORT_RECIRCULATE);
        } else if (hdr.step.kind == 7 || hdr.step.kind == 8) {
            send_to_port(ostd, (PortId_t) (bit<32>) hdr.step.port);
        } else if (hdr.step.kind == 9) {
            send_to_port(ostd, (PortId_t) 600);
        } else if (hdr.step.kind == 10) {
            send_to_port(ostd, PSA_PORT_CPU);
        } else {
            send_to_port(ostd, (PortId_t) (bit<32>) hdr.step.port);
            ingress_drop(ostd);
        }
        if (istd.ingress_port == PSA_PORT_CPU) {
            hdr.step.told = 0xcc;
        }
    }
}

control InDeparser(packet_out buffer, out clone_t clone_meta, out again_t resubmit_meta,
                   out normal_t normal_meta, inout headers_t hdr, in metadata_t meta,
                   in psa_ingress_output_metadata_t istd) {
    apply {
        if (psa_clone_i2e(istd)) {
            clone_meta.told = 0x1c;
        }
        if (psa_resubmit(istd)) {
            resubmit_meta.told = 0x5b;
        }
        if (psa_normal(istd)) {
            normal_meta.told = 0x40 + hdr.step.told;
        }
        hdr.step.kind = hdr.step.kind | 0x80;
        buffer.emit(hdr.step);
    }
}

parser OutParser(packet_in buffer, out headers_t hdr, inout metadata_t meta,
                 in psa_egress_parser_input_metadata_t istd, in normal_t normal_meta,
                 in clone_t clone_i2e_meta, in clone_t clone_e2e_meta) {
    state start {
        buffer.extract(hdr.step);
        transition select(istd.packet_path) {
            PSA_PacketPath_t.CLONE_I2E: cloned_in_ingress;
            PSA_PacketPath_t.CLONE_E2E: cloned_in_egress;
            default: normal;
        }
    }
    state normal {
        meta.told = normal_meta.told;
        transition accept;
    }
    state cloned_in_ingress {
        meta.told = clone_i2e_meta.told;
        transition accept;
    }
    state cloned_in_egress {
        meta.told = clone_e2e_meta.told;
        transition accept;
    }
}

control Out(inout headers_t hdr, inout metadata_t meta, in psa_egress_input_metadata_t istd,
            inout psa_egress_output_metadata_t ostd) {
    apply {
        hdr.step.told = meta.told;
        if (istd.packet_path == PSA_PacketPath_t.NORMAL_UNICAST) {
            hdr.step.path = 1;
        } else if (istd.packet_path == PSA_PacketPath_t.NORMAL_MULTICAST) {
            hdr.step.path = 2;
        } else if (istd.packet_path == PSA_PacketPath_t.CLONE_I2E) {
            hdr.step.path = 3;
        } else if (istd.packet_path == PSA_PacketPath_t.CLONE_E2E) {
            hdr.step.path = 4;
        }
        hdr.step.replica = (bit<8>) (EgressInstanceUint_t) istd.instance;
        hdr.step.class_of_service = (bit<8>) (ClassOfServiceUint_t) istd.class_of_service;
        if (istd.packet_path == PSA_PacketPath_t.NORMAL_UNICAST
                && (hdr.step.kind == 0x87 || hdr.step.kind == 0x88)) {
            ostd.clone = true;
            ostd.clone_session_id = (CloneSessionId_t) 6;
            if (hdr.step.kind == 0x88) {
                egress_drop(ostd);
            }
        }
    }
}

control OutDeparser(packet_out buffer, out clone_t clone_meta, out again_t recirculate_meta,
                    inout headers_t hdr, in metadata_t meta,
                    in psa_egress_output_metadata_t istd,
                    in psa_egress_deparser_input_metadata_t edstd) {
    apply {
        if (psa_clone_e2e(istd)) {
            clone_meta.told = 0xec;
        }
        if (psa_recirculate(istd, edstd)) {
            recirculate_meta.told = 0xac;
        }
        buffer.emit(hdr);
    }
}

PSA_Switch(IngressPipeline(InParser(), In(), InDeparser()), PacketReplicationEngine(),
           EgressPipeline(OutParser(), Out(), OutDeparser()), BufferingQueueingEngine()) main;
