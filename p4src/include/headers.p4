/*
 * The headers, in the order of a packet.
 *
 * Field names and places are those of protocol/wire.py; docs/protocol.md draws them.
 */
#ifndef HOPSUM_HEADERS_P4_
#define HOPSUM_HEADERS_P4_

#include "types.p4"

#ifdef PER_LANE_REGISTERS
#include "lanes_per_lane.p4"
#else
#include "lanes_wide.p4"
#endif

// -- To and from the controller ----------------------------------------------

@controller_header("packet_out")
header packet_out_t {
    opcode_t     opcode;
    bit<7>       _pad;
    port_t       port;  // where opcode SEND sends the frame
    slot_index_t slot;  // what opcode INSPECT reads
}

@controller_header("packet_in")
header packet_in_t {
    opcode_t     opcode;
    bit<7>       _pad;
    port_t       port;     // where the request came in
    slot_index_t slot;
    children_t   bitmap;   // children seen
    bit<8>       count;
    fan_in_t     fan_in;
    bit<8>       cleared;
    bit<8>       valid;    // 0: nothing was ever in this slot
}

// -- Other people's ----------------------------------------------------------

header ethernet_t {
    mac_addr_t dst_mac;
    mac_addr_t src_mac;
    bit<16>    ether_type;
}

header vlan_tag_t {
    bit<16> tci;         // priority, drop eligibility, VLAN
    bit<16> ether_type;  // of what follows
}

header ipv4_t {
    bit<4>      version;
    bit<4>      ihl;
    bit<8>      tos;
    bit<16>     total_length;
    bit<16>     identification;
    bit<3>      fragment_flags;
    bit<13>     fragment_offset;
    bit<8>      ttl;
    bit<8>      protocol;
    bit<16>     checksum;
    ipv4_addr_t src_addr;
    ipv4_addr_t dst_addr;
}

header ipv4_options_t {
    varbit<320> options;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> udp_length;
    bit<16> checksum;
}

// -- Ours --------------------------------------------------------------------

header hopsum_t {
    bit<4>      version;
    kind_t      kind;
    bit<2>      reserved_flags;
    bit<1>      repair;    // sent again on this link, under its first sequence number
    bit<1>      sequenced; // its sequence number counts
    bit<1>      ecn;       // congestion was met on the way
    bit<1>      bypass;    // no switch may aggregate it
    bit<1>      stale;     // a question to the server, no contribution
    bit<1>      overflow;  // a lane of the sum wrapped around
    reduction_t reduction;
    bit<4>      reserved;
    exponent_t  exponent;
    job_t       job;
    tree_t      tree;
    bit<8>      hops;      // entries of the stack
    epoch_t     epoch;
    bit<16>     worker;
    weight_t    weight;
    sequence_t  sequence;  // among the frames of its sender on this link
    fragment_t  fragment;
}

// What one switch is to do; the last one of a contribution belongs to the server and stays.
header hop_t {
    bit<1>   aggregate;
    bit<1>   clear;
    bit<6>   child;   // which child of this switch the packet speaks for
    fan_in_t fan_in;
    bit<16>  port;    // where it leaves
}

struct headers_t {
    packet_out_t    packet_out;
    packet_in_t     packet_in;
    ethernet_t      ethernet;
    ipv4_t          ipv4;
    ipv4_options_t  ipv4_options;
    udp_t           udp;
    hopsum_t        hopsum;
    hop_t[MAX_HOPS] hops;
    lanes_t         lanes;
    // Behind the Ethernet header in a packet; here they would shift the lanes off their alignment.
    vlan_tag_t      outer_tag;
    vlan_tag_t      inner_tag;
}

#endif  // HOPSUM_HEADERS_P4_
