/*
 * Output ports: by the packet's stack, by the controller's choice, or by the plain tables.
 *
 * A plain IPv4 packet with a route is routed, unless it has a VLAN tag; everything else is switched
 * by its destination MAC address (ARP, hosts of one subnet, VLANs, flooding).
 */
#ifndef HOPSUM_FORWARDING_P4_
#define HOPSUM_FORWARDING_P4_

#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"

control StackForwarding(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    // The first entry has been executed: remove it, and adapt all lengths. The IPv4 checksum
    // follows in checksums.p4; a UDP checksum, if there were one, would be invalid.
    action pop_and_forward() {
        standard_metadata.egress_spec = (port_t)hdr.hops[0].port;
        hdr.hops.pop_front(1);
        hdr.hopsum.hops = hdr.hopsum.hops - 1;
        hdr.ipv4.total_length = hdr.ipv4.total_length - HOP_BYTES;
        hdr.udp.udp_length = hdr.udp.udp_length - HOP_BYTES;
        hdr.udp.checksum = 0;
    }

    apply {
        pop_and_forward();
    }
}  // control StackForwarding

control PacketOuts(in headers_t hdr, inout standard_metadata_t standard_metadata) {
    apply {
        if (hdr.packet_out.opcode == opcode_t.SEND) {
            standard_metadata.egress_spec = hdr.packet_out.port;
        } else {
            outcomes.count(OUTCOME_MALFORMED);  // an inspection without an INSPECT frame
        }
    }
}  // control PacketOuts

control PlainForwarding(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    bool routed;

    @id(1)
    action drop() {
        mark_to_drop(standard_metadata);
    }

    // Checksum by RFC 1624, equation 3: HC' = ~(~HC + ~m + m') with m' = m - 0x0100. It holds with
    // IPv4 options, and an invalid checksum stays invalid.
    @id(2)
    action route(mac_addr_t dst_mac, port_t port) {
        hdr.ethernet.dst_mac = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl |-| 1;
        bit<17> sum = (bit<17>)~hdr.ipv4.checksum + 0xFEFF;
        hdr.ipv4.checksum = ~(sum[15:0] + (bit<16>)sum[16:16]);
        standard_metadata.egress_spec = port;
    }

    @id(1)
    table ipv4_route {
        key = {
            hdr.ipv4.dst_addr : lpm @id(1) @name("dst_addr");
        }
        actions = {
            route;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        size = ROUTE_SIZE;
    }

    @id(3)
    action forward(port_t port) {
        standard_metadata.egress_spec = port;
    }

    @id(4)
    action flood(bit<16> group) {
        standard_metadata.mcast_grp = group;
    }

    @id(2)
    table l2_forward {
        key = {
            hdr.ethernet.dst_mac : exact @id(1) @name("dst_mac");
        }
        actions = {
            forward;
            flood;
            @defaultonly drop;
        }
        const default_action = drop();
        size = L2_SIZE;
    }

    apply {
        routed = false;
        if (hdr.ipv4.isValid() && !hdr.outer_tag.isValid()) {
            routed = ipv4_route.apply().hit;
        }
        if (routed) {
            if (hdr.ipv4.ttl == 0) {
                drop();
            } else {
                outcomes.count(OUTCOME_PLAIN);
            }
        } else if (l2_forward.apply().hit) {
            outcomes.count(OUTCOME_PLAIN);
        }
    }
}  // control PlainForwarding

#endif  // HOPSUM_FORWARDING_P4_
