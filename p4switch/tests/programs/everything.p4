// One object of every kind that P4Runtime knows, for the tests of the control plane.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> pad;
}

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
}

struct metadata_t {
    bit<16> group;
    bit<2> color;
}

struct learn_t {
    bit<48> source;
    bit<9> port;
}

parser TestParser(
    packet_in packet,
    out headers_t headers,
    inout metadata_t metadata,
    inout standard_metadata_t standard)
{
    value_set<bit<16>>(2) special_types;

    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(headers.packet_out);
        transition accept;
    }

    state parse_ethernet {
        packet.extract(headers.ethernet);
        transition select(headers.ethernet.ether_type) {
            special_types: special;
            default: accept;
        }
    }

    state special {
        metadata.group = 7;
        transition accept;
    }
}

control TestVerify(inout headers_t headers, inout metadata_t metadata) {
    apply {}
}

control TestIngress(
    inout headers_t headers,
    inout metadata_t metadata,
    inout standard_metadata_t standard)
{
    counter(8, CounterType.packets_and_bytes) seen;
    meter(4, MeterType.packets) rate;
    register<bit<40>>(4) totals;
    register<int<12>>(4) offsets;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.packets) speed;
    action_profile(8) next_hops;
    action_selector(HashAlgorithm.crc16, 16, 16) paths;

    action drop() {
        mark_to_drop(standard);
    }

    action forward(bit<9> port) {
        standard.egress_spec = port;
    }

    action flood(bit<16> group) {
        standard.mcast_grp = group;
    }

    action mirror(bit<9> port) {
        standard.egress_spec = port;
        clone(CloneType.I2E, 5);
    }

    action to_controller(bit<7> reason) {
        headers.packet_in.setValid();
        headers.packet_in.ingress_port = standard.ingress_port;
        headers.packet_in.reason = reason;
        standard.egress_spec = CPU_PORT;
    }

    action learn() {
        digest<learn_t>(1, {headers.ethernet.source, standard.ingress_port});
    }

    action counted_forward(bit<9> port) {
        hits.count();
        standard.egress_spec = port;
    }

    action metered_forward(bit<9> port) {
        speed.read(metadata.color);
        standard.egress_spec = port;
    }

    table exact_table {
        key = {
            headers.ethernet.destination: exact @name("destination");
        }
        actions = { drop; forward; flood; mirror; to_controller; learn; @defaultonly NoAction; }
        default_action = NoAction();
        size = 4;
    }

    table lpm_table {
        key = {
            headers.ethernet.destination: lpm @name("destination");
        }
        actions = { counted_forward; @tableonly drop; NoAction; }
        counters = hits;
        default_action = NoAction();
        support_timeout = true;
    }

    table ternary_table {
        key = {
            headers.ethernet.source: ternary @name("source");
            headers.ethernet.ether_type: range @name("ether_type");
            standard.ingress_port: optional @name("port");
        }
        actions = { forward; drop; NoAction; }
        const default_action = NoAction();
    }

    table metered_table {
        key = {
            headers.ethernet.source: exact @name("source");
        }
        actions = { metered_forward; NoAction; }
        meters = speed;
        default_action = NoAction();
    }

    table const_table {
        key = {
            headers.ethernet.ether_type: ternary @name("ether_type");
        }
        actions = { forward; NoAction; }
        default_action = NoAction();
        const entries = {
            0x0800 &&& 0xff00: forward(1);
            0x86dd: forward(2);
        }
    }

    table hop_table {
        key = {
            headers.ethernet.destination: exact @name("destination");
        }
        actions = { forward; NoAction; }
        implementation = next_hops;
    }

    table path_table {
        key = {
            headers.ethernet.destination: exact @name("destination");
            headers.ethernet.source: selector;
        }
        actions = { forward; drop; NoAction; }
        implementation = paths;
    }

    table keyless_table {
        actions = { forward; NoAction; }
        default_action = NoAction();
    }

    apply {
        if (headers.packet_out.isValid()) {
            standard.egress_spec = headers.packet_out.egress_port;
            headers.packet_out.setInvalid();
        } else {
            bit<2> color;
            drop();
            seen.count((bit<32>) standard.ingress_port);
            rate.execute_meter((bit<32>) standard.ingress_port & 3, color);
            bit<40> total;
            totals.read(total, 0);
            totals.write(0, total + 1);
            int<12> offset;
            offsets.read(offset, 0);
            offsets.write(0, offset - 1);
            if (metadata.group == 7) {
                forward(9);
            }
            const_table.apply();
            keyless_table.apply();
            lpm_table.apply();
            ternary_table.apply();
            metered_table.apply();
            hop_table.apply();
            path_table.apply();
            exact_table.apply();
        }
    }
}

control TestEgress(
    inout headers_t headers,
    inout metadata_t metadata,
    inout standard_metadata_t standard)
{
    apply {}
}

control TestCompute(inout headers_t headers, inout metadata_t metadata) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t headers) {
    apply {
        packet.emit(headers.packet_in);
        packet.emit(headers.ethernet);
    }
}

V1Switch(
    TestParser(),
    TestVerify(),
    TestIngress(),
    TestEgress(),
    TestCompute(),
    TestDeparser()
) main;
