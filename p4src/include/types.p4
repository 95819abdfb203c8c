/*
 * Widths and codes used by the other files.
 *
 * Codes on the wire are those of src/hopsum/protocol/wire.py.
 */
#ifndef HOPSUM_TYPES_P4_
#define HOPSUM_TYPES_P4_

#include "config.p4"

// -- Widths ------------------------------------------------------------------

typedef bit<9>  port_t;
typedef bit<48> mac_addr_t;
typedef bit<32> ipv4_addr_t;

typedef bit<16> job_t;       // from 1: a job 0 would look like an empty register
typedef bit<8>  tree_t;
typedef bit<16> epoch_t;     // from 1, a serial number
typedef bit<32> fragment_t;  // from 0, a serial number that is never reset
typedef bit<9>  child_t;     // index of a child of this switch
typedef bit<512> children_t;  // a bit a child of this switch
typedef bit<10> fan_in_t;    // how many children there are
typedef bit<16> weight_t;    // workers in a sum
typedef bit<8>  exponent_t;  // biased, so that the larger number is the larger exponent
typedef bit<32> slot_index_t;
typedef bit<16> sequence_t;  // of a frame among those that one neighbour sends another

// -- Codes on the wire -------------------------------------------------------

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_VLAN = 0x8100;          // IEEE 802.1Q
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88A8;  // IEEE 802.1ad
const bit<4>  IPV4_VERSION = 4;
const bit<4>  IPV4_IHL_PLAIN = 5;  // a header without options
const bit<3>  DONT_FRAGMENT = 2;   // and no more fragments
const bit<8>  UDP_PROTOCOL = 17;
const bit<16> UDP_PORT = 0x4853;   // ASCII "HS"
const bit<32> UDP_PORTS = 0x48534853;  // source and destination
const bit<4>  VERSION = 4;

enum bit<4> kind_t {
    CONTRIBUTION = 1,  // up: a worker's fragment, or a sum of some
    RESULT = 2,        // down to one worker, along the stack
    REPLICATED = 3,    // down to all workers, copied by the switches
    INSPECT = 4,       // a question about a slot, from the CPU port only
    REQUEST = 5        // to a neighbour: send again what was lost on the link
}

enum bit<4> reduction_t {
    SUM = 0,  // of values: two's complement, modulo 2^32, 2^16 or 2^8
    AND = 1,  // bitwise
    MAX = 2,  // of values: the greater, as signed numbers
    XOR = 3,  // bitwise
    NONE = 4,  // packets have no lanes
    BROADCAST = 5,  // only results have lanes: the root's
    // For the root alone: only contributions have lanes.
    REDUCE_SUM = 8,
    REDUCE_AND = 9,
    REDUCE_MAX = 10,
    REDUCE_XOR = 11
}

// Of the values in a lane of 32 bits: one, two or four.
enum bit<4> width_t {
    WIDTH_32 = 0,
    WIDTH_16 = 1,  // of values that are added or compared, as the next
    WIDTH_8 = 2
}

enum bit<8> opcode_t {
    SEND = 0,    // packet-out: send the frame behind the header out of a port
    INSPECT = 1  // packet-out: read a slot; packet-in: what was read
}

// -- Lengths in bytes --------------------------------------------------------

const bit<16> ETHERNET_BYTES = 14;
const bit<16> IPV4_BYTES = 20;
const bit<16> UDP_BYTES = 8;
const bit<16> HEADER_BYTES = 20;
const bit<16> HOP_BYTES = 4;
const bit<16> LANE_BYTES = 4;
const bit<16> LANES_BYTES = LANE_BYTES * LANES;
const bit<16> PACKET_OUT_BYTES = 7;

// -- Numbers of the switch ---------------------------------------------------

const slot_index_t SLOT_MASK = SLOTS - 1;
const port_t  MAX_PORT = 510;                  // 511 is where v1model drops
const bit<32> INSTANCE_TYPE_INGRESS_CLONE = 1;  // BMv2 docs/simple_switch.md, instance_type
const bit<32> INSTANCE_TYPE_REPLICATION = 5;
const bit<8>  FIELDS_OF_REQUESTS = 1;          // metadata that a clone keeps
const bit<3>  FIRST_QUEUE = 7;                 // the egress queue that is served first

// -- Addresses ---------------------------------------------------------------

const mac_addr_t  GROUP_MAC = 0x01005E004853;    // of replicated results
const ipv4_addr_t GROUP_ADDR = 0xEF004853;       // 239.0.72.83
const mac_addr_t  SWITCH_MAC = 0x020048530000;   // of requests for results
const ipv4_addr_t SWITCH_ADDR = 0;

// -- What passes between the stages ------------------------------------------

// Who a packet comes from, by admission.
enum bit<2> sender_t {
    UNADMITTED = 0,  // fails admission: may not speak for this job here
    CHILD = 1,       // a port below this switch in the job's tree
    SERVER = 2       // the port towards the job's server
}

// How a packet is processed.
enum bit<3> task_t {
    DISCARD = 0,
    PASS = 1,        // forward it and touch nothing
    AGGREGATE = 2,   // a contribution for a slot
    DELIVER = 3,     // a result; it may clear a slot
    INSPECT = 4,     // show a slot to the controller
    REPEAT_SUM = 5,  // the parent misses a sum
    REPEAT_RESULT = 6  // a child misses a result
}

// How a packet's fragment compares with the one in its slot.
enum bit<3> age_t {
    VACANT = 0,   // nothing was ever there
    FOREIGN = 1,  // another job's, or another tree's
    NEWER = 2,
    SAME = 3,
    OLDER = 4
}

// What happens to the lanes.
enum bit<2> lanes_operation_t {
    KEEP = 0,     // the slot's and the packet's stay as they are
    STORE = 1,    // the packet's overwrite the slot's
    COMBINE = 2,  // the packet's join the slot's, and both hold the outcome
    LOAD = 3      // the slot's, if it has any, overwrite the packet's
}

#endif  // HOPSUM_TYPES_P4_
