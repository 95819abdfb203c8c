/*
 * The headers, in the order of a packet.
 *
 * Field names and places are those of src/hopsum/protocol/wire.py; docs/protocol.md draws them.
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
    port_t       port;  // output port of opcode SEND
    slot_index_t slot;  // slot that opcode INSPECT reads
}

@controller_header("packet_in")
header packet_in_t {
    opcode_t     opcode;
    bit<7>       _pad;
    port_t       port;     // ingress port of the request
    slot_index_t slot;
    children_t   bitmap;   // children seen
    bit<16>      count;
    bit<16>      fan_in;
    bit<8>       cleared;
    bit<8>       valid;    // 0: nothing was ever in this slot
}

// -- Other protocols ---------------------------------------------------------

header ethernet_t {
    mac_addr_t dst_mac;
    mac_addr_t src_mac;
    bit<16>    ether_type;
}

header vlan_tag_t {
    bit<16> tci;         // priority, drop eligibility, VLAN
    bit<16> ether_type;  // of the payload
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

// -- hopsum ------------------------------------------------------------------

header hopsum_t {
    bit<4>      version;
    kind_t      kind;
    bit<2>      reserved_flags;
    bit<1>      repair;    // retransmitted on this link, under its original sequence number
    bit<1>      sequenced; // its sequence number is valid
    bit<1>      ecn;       // it met a long queue
    bit<1>      bypass;    // no switch may aggregate it
    bit<1>      stale;     // a question to the server, not a contribution
    bit<1>      overflow;  // a value of the sum wrapped around
    reduction_t reduction;
    width_t     width;     // of the values in the lanes
    exponent_t  exponent;
    job_t       job;
    tree_t      tree;
    bit<8>      hops;      // number of stack entries
    epoch_t     epoch;
    bit<16>     worker;
    weight_t    weight;
    sequence_t  sequence;  // number on its link
    fragment_t  fragment;
}

// Instructions for one switch; the last entry of a contribution is the server's and stays.
header hop_t {
    bit<1>   aggregate;
    bit<1>   clear;
    child_t  child;   // of the packet at this switch
    fan_in_t fan_in;
    bit<11>  port;    // output port
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
    // They follow the Ethernet header in a packet; here they would misalign the lanes.
    vlan_tag_t      outer_tag;
    vlan_tag_t      inner_tag;
}

#endif  // HOPSUM_HEADERS_P4_
