/*
 * The parser: which packets are hopsum's, and whether they are well-formed.
 *
 * A malformed hopsum packet causes a parser error, which ingress counts and drops:
 * a failed `verify`, no matching row of a select, too few bytes.
 * All other packets are parsed as far as the plain tables need.
 *
 * Hosts trust that hopsum packets were admitted. So any packet that a host could mistake for
 * hopsum's is hopsum's here too, or dropped: including a fragment that shows hopsum's ports,
 * and a packet with VLAN tags, which kernels remove before a host's agent sees it.
 */
#ifndef HOPSUM_PARSER_P4_
#define HOPSUM_PARSER_P4_

#include "headers.p4"
#include "metadata.p4"

error {
    Ipv4Options,
    UdpPort,
    HopsumVersion,
    HopsumReduction,
    HopsumWidth,
    HopsumOwner,
    Length,
    Lanes,
    Fragment,
    VlanTag
}

parser HopsumParser(packet_in packet,
                    out headers_t hdr,
                    inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    bit<16> bytes_in_front = 0;  // of the Ethernet header
    bit<1> from_controller = 0;
    bit<1> up;
    bit<1> with_lanes = 0;
    bit<16> ipv4_bytes;
    bit<8> hops_left;

    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }

    state parse_packet_out {
        packet.extract(hdr.packet_out);
        bytes_in_front = PACKET_OUT_BYTES;
        from_controller = 1;
        transition select(hdr.packet_out.opcode) {
            opcode_t.SEND: accept;  // the frame in it is not parsed
            opcode_t.INSPECT: parse_ethernet;
            default: no_match;
        }
    }

    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_VLAN: parse_outer_tag;
            ETHERTYPE_SERVICE_VLAN: parse_outer_tag;
            default: accept;
        }
    }

    state parse_outer_tag {
        packet.extract(hdr.outer_tag);
        transition select(hdr.outer_tag.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_VLAN: parse_inner_tag;
            ETHERTYPE_SERVICE_VLAN: parse_inner_tag;
            default: accept;
        }
    }

    // A kernel removes one tag at a time: packets with three tags reach no agent.
    state parse_inner_tag {
        packet.extract(hdr.inner_tag);
        transition select(hdr.inner_tag.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl) {
            (IPV4_VERSION, IPV4_IHL_PLAIN): parse_transport;
            (IPV4_VERSION, 6 .. 15): parse_ipv4_options;
            default: no_match;
        }
    }

    state parse_ipv4_options {
        packet.extract(hdr.ipv4_options, ((bit<32>)hdr.ipv4.ihl - 5) << 5);
        transition parse_transport;
    }

    state parse_transport {
        transition select(hdr.ipv4.protocol, hdr.ipv4.fragment_offset) {
            (UDP_PROTOCOL, 0): parse_udp;
            (UDP_PROTOCOL, _): parse_later_fragment;
            default: accept;
        }
    }

    // It has no UDP header, but maybe bytes that look like hopsum's. The range is
    // that of packets with at least four bytes after a header without options, as hopsum's have.
    state parse_later_fragment {
        transition select(hdr.ipv4.ihl, hdr.ipv4.total_length) {
            (IPV4_IHL_PLAIN, 24 .. 0xFFFF): look_at_ports;
            default: accept;
        }
    }

    state look_at_ports {
        transition select(packet.lookahead<bit<32>>()) {
            UDP_PORTS: refuse_fragment;
            default: accept;
        }
    }

    state refuse_fragment {
        verify(false, error.Fragment);
        transition accept;  // not reached
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            UDP_PORT: parse_hopsum;
            default: accept;
        }
    }

    state parse_hopsum {
        packet.extract(hdr.hopsum);
        verify(hdr.ethernet.ether_type == ETHERTYPE_IPV4, error.VlanTag);
        verify(hdr.ipv4.ihl == IPV4_IHL_PLAIN, error.Ipv4Options);
        // Ordinary sockets of a host's other processes have other ports.
        verify(hdr.udp.src_port == UDP_PORT, error.UdpPort);
        verify(hdr.ipv4.fragment_flags == DONT_FRAGMENT, error.Fragment);
        verify(hdr.hopsum.version == VERSION, error.HopsumVersion);
        verify((bit<4>)hdr.hopsum.reduction <= (bit<4>)reduction_t.BROADCAST
               || ((bit<4>)hdr.hopsum.reduction >= (bit<4>)reduction_t.REDUCE_SUM
                   && (bit<4>)hdr.hopsum.reduction <= (bit<4>)reduction_t.REDUCE_XOR),
               error.HopsumReduction);
        verify(hdr.hopsum.width == width_t.WIDTH_32
               || ((hdr.hopsum.width == width_t.WIDTH_16 || hdr.hopsum.width == width_t.WIDTH_8)
                   && (hdr.hopsum.reduction == reduction_t.SUM
                       || hdr.hopsum.reduction == reduction_t.MAX
                       || hdr.hopsum.reduction == reduction_t.REDUCE_SUM
                       || hdr.hopsum.reduction == reduction_t.REDUCE_MAX)),
               error.HopsumWidth);

        ipv4_bytes = IPV4_BYTES + UDP_BYTES + HEADER_BYTES + HOP_BYTES * (bit<16>)hdr.hopsum.hops;
        // A request is like the frame that showed the loss: with a stack if that was a sum.
        up = (bit<1>)(hdr.hopsum.kind == kind_t.CONTRIBUTION
                      || (hdr.hopsum.kind == kind_t.REQUEST && hdr.hopsum.hops != 0));
        transition select(up, hdr.hopsum.reduction) {
            (_, reduction_t.NONE): check_lengths;
            (1, reduction_t.BROADCAST): check_lengths;
            (0, reduction_t.REDUCE_SUM): check_lengths;
            (0, reduction_t.REDUCE_AND): check_lengths;
            (0, reduction_t.REDUCE_MAX): check_lengths;
            (0, reduction_t.REDUCE_XOR): check_lengths;
            default: expect_lanes;
        }
    }

    state expect_lanes {
        with_lanes = 1;
        ipv4_bytes = ipv4_bytes + LANES_BYTES;
        transition check_lengths;
    }

    // Four lengths must agree: of the frame, IPv4, UDP, and the hopsum header and stack with as
    // many lanes as this switch is compiled for, if any.
    state check_lengths {
        verify(hdr.ipv4.total_length == ipv4_bytes, error.Length);
        verify(hdr.udp.udp_length == ipv4_bytes - IPV4_BYTES, error.Length);
        verify(standard_metadata.packet_length
               == (bit<32>)(bytes_in_front + ETHERNET_BYTES + ipv4_bytes), error.Length);

        hops_left = hdr.hopsum.hops;
        transition select(from_controller, hdr.hopsum.kind, hdr.hopsum.hops) {
            (0, kind_t.CONTRIBUTION, 2 .. MAX_HOPS): parse_owner;  // ours and the server's
            (0, kind_t.RESULT, 1 .. MAX_HOPS): parse_owner;
            (0, kind_t.REPLICATED, 0): parse_owner;
            (0, kind_t.REQUEST, 0 .. MAX_HOPS): parse_request;
            (1, kind_t.INSPECT, 0): parse_inspection;
            default: no_match;
        }
    }

    // A frame without lanes in either direction shows no loss.
    state parse_request {
        verify(hdr.hopsum.reduction != reduction_t.NONE, error.Lanes);
        transition parse_owner;
    }

    // It has room for the lanes of any slot.
    state parse_inspection {
        verify(with_lanes == 1, error.Lanes);
        transition parse_lanes;
    }

    state parse_owner {
        verify(hdr.hopsum.job != 0 && hdr.hopsum.epoch != 0 && hdr.hopsum.weight != 0,
               error.HopsumOwner);
        transition select(hops_left, with_lanes) {
            (0, 0): accept;
            (0, 1): parse_lanes;
            default: parse_hop;
        }
    }

    state parse_hop {
        packet.extract(hdr.hops.next);
        hops_left = hops_left - 1;
        transition select(hops_left, with_lanes) {
            (0, 0): accept;
            (0, 1): parse_lanes;
            default: parse_hop;
        }
    }

    state parse_lanes {
        packet.extract(hdr.lanes);
        transition accept;
    }

    // A select without a default should do this, but BMv2 then accepts the packet.
    state no_match {
        verify(false, error.NoMatch);
        transition accept;  // not reached
    }
}  // parser HopsumParser

#endif  // HOPSUM_PARSER_P4_
