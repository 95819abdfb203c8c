// The v1model architecture, as BMv2's simple_switch behaves (its docs/simple_switch.md).
// Names, signatures and the order of members are what programs and control planes rely on.
//
// V1MODEL_VERSION chooses between two forms, as with p4c: from 20200408 on the index of a
// counter, meter or register has a type parameter of its own (I) and ports have a type name.

#ifndef _V1_MODEL_P4_
#define _V1_MODEL_P4_

#include "core.p4"

#ifndef V1MODEL_VERSION
#define V1MODEL_VERSION 20180101
#elif V1MODEL_VERSION < 20180101 || V1MODEL_VERSION > 20200408
#error V1MODEL_VERSION is not known: versions are 20180101 to 20200408
#endif

#if V1MODEL_VERSION >= 20200408
#define P4SWITCH_INDEXED <I>
#define P4SWITCH_INDEX I
#define P4SWITCH_PORT PortId_t
#else
#define P4SWITCH_INDEXED
#define P4SWITCH_INDEX bit<32>
#define P4SWITCH_PORT bit<9>
#endif

const bit<32> __v1model_version = V1MODEL_VERSION;

#if V1MODEL_VERSION >= 20200408
typedef bit<9> PortId_t;
#endif

match_kind {
    range,
    optional,   // exact, or any value
    selector    // chooses a member of an action selector's group
}

// --- Metadata ------------------------------------------------------------------------------

// The aliases are the names that simple_switch has for these fields in its JSON.
@metadata @name("standard_metadata")
struct standard_metadata_t {
    P4SWITCH_PORT ingress_port;
    P4SWITCH_PORT egress_spec;      // where to send; 511 drops
    P4SWITCH_PORT egress_port;
    bit<32> instance_type;          // 0 normal, 1 ingress clone, 2 egress clone, 3 coalesced,
                                    // 4 recirculated, 5 replicated, 6 resubmitted
    bit<32> packet_length;          // bytes
    @alias("queueing_metadata.enq_timestamp")
    bit<32> enq_timestamp;          // microseconds, as are the other times
    @alias("queueing_metadata.enq_qdepth")
    bit<19> enq_qdepth;             // packets
    @alias("queueing_metadata.deq_timedelta")
    bit<32> deq_timedelta;
    @alias("queueing_metadata.deq_qdepth")
    bit<19> deq_qdepth;
    @alias("intrinsic_metadata.ingress_global_timestamp")
    bit<48> ingress_global_timestamp;
    @alias("intrinsic_metadata.egress_global_timestamp")
    bit<48> egress_global_timestamp;
    @alias("intrinsic_metadata.mcast_grp")
    bit<16> mcast_grp;              // 0 is no group
    @alias("intrinsic_metadata.egress_rid")
    bit<16> egress_rid;             // which replica of the group this is
    bit<1> checksum_error;          // 1 after a verify_checksum that failed
    error parser_error;
    @alias("intrinsic_metadata.priority")
    bit<3> priority;                // queue at the egress port
}

// --- Counters, meters and registers --------------------------------------------------------

enum CounterType {
    packets,
    bytes,
    packets_and_bytes
}

enum MeterType {
    packets,
    bytes
}

// Array of counters. An index beyond the size changes nothing.
extern counter P4SWITCH_INDEXED {
    counter(bit<32> size, CounterType type);
    void count(in P4SWITCH_INDEX index);
}

// One counter an entry of the table that has it as property `counters`.
extern direct_counter {
    direct_counter(CounterType type);
    void count();
}

#define V1MODEL_METER_COLOR_GREEN 0
#define V1MODEL_METER_COLOR_YELLOW 1
#define V1MODEL_METER_COLOR_RED 2

// Array of two-rate three-colour meters (RFC 2698); the result is one of the colours above.
extern meter P4SWITCH_INDEXED {
    meter(bit<32> size, MeterType type);
    void execute_meter<T>(in P4SWITCH_INDEX index, out T result);
}

// One meter an entry of the table that has it as property `meters`.
extern direct_meter<T> {
    direct_meter(MeterType type);
    void read(out T result);
}

// Array of cells that keep their value from packet to packet. A write beyond the size does
// nothing, a read there gives an unspecified value.
#if V1MODEL_VERSION >= 20200408
extern register<T, I> {
#else
extern register<T> {
#endif
    register(bit<32> size);
    @noSideEffects
    void read(out T result, in P4SWITCH_INDEX index);
    void write(in P4SWITCH_INDEX index, in T value);
}

// --- Implementations of tables -------------------------------------------------------------

// Actions shared by entries, through members.
extern action_profile {
    action_profile(bit<32> size);
}

enum HashAlgorithm {
    crc32,
    crc32_custom,
    crc16,
    crc16_custom,
    random,
    identity,
    csum16,
    xor16
}

// The same with groups of members; a hash of the `selector` keys chooses within a group.
extern action_selector {
    action_selector(HashAlgorithm algorithm, bit<32> size, bit<32> outputWidth);
}

// --- Functions -----------------------------------------------------------------------------

// A number from lo to hi, both included.
extern void random<T>(out T result, in T lo, in T hi);

// Sends the values of `data`, as they are now, to the control plane. Ingress only.
extern void digest<T>(in bit<32> receiver, in T data);

@deprecated("Please use mark_to_drop(standard_metadata) instead.")
extern void mark_to_drop();

// Sets egress_spec to the port that drops, and mcast_grp to 0; later code may undo both.
@pure
extern void mark_to_drop(inout standard_metadata_t standard_metadata);

// A hash of the fields of tuple `data`, from base to base + max - 1; base if max is 0.
@pure
extern void hash<O, T, D, M>(out O result, in HashAlgorithm algo, in T base, in D data, in M max);

@deprecated("Please use verify_checksum/update_checksum instead.")
extern Checksum16 {
    Checksum16();
    bit<16> get<D>(in D data);
}

// Sets checksum_error unless `checksum` is that of `data`, where `condition` holds.
extern void verify_checksum<T, O>(in bool condition, in T data, in O checksum,
                                  HashAlgorithm algo);

// Sets `checksum` to that of `data`, where `condition` holds.
@pure
extern void update_checksum<T, O>(in bool condition, in T data, inout O checksum,
                                  HashAlgorithm algo);

// The same over `data` followed by all bytes that were not parsed.
extern void verify_checksum_with_payload<T, O>(in bool condition, in T data, in O checksum,
                                               HashAlgorithm algo);
@noSideEffects
extern void update_checksum_with_payload<T, O>(in bool condition, in T data, inout O checksum,
                                               HashAlgorithm algo);

enum CloneType {
    I2E,    // from ingress: the packet as it came in
    E2E     // from egress: the packet as it goes out
}

// In these, of several calls in one pass only the last takes effect, and metadata fields with
// @field_list(index) keep their values in the new packet. Resubmission is for ingress,
// recirculation for egress.
extern void clone(in CloneType type, in bit<32> session);
extern void clone_preserving_field_list(in CloneType type, in bit<32> session, bit<8> index);
extern void resubmit_preserving_field_list(bit<8> index);
extern void recirculate_preserving_field_list(bit<8> index);

@deprecated("Please use 'resubmit_preserving_field_list' instead")
extern void resubmit<T>(in T data);
@deprecated("Please use 'recirculate_preserving_field_list' instead")
extern void recirculate<T>(in T data);
@deprecated("Please use 'clone_preserving_field_list' instead")
extern void clone3<T>(in CloneType type, in bit<32> session, in T data);

// Cuts the packet that leaves to a number of bytes.
extern void truncate(in bit<32> length);

// Stop the switch with a message unless `check` holds.
extern void assert(in bool check);
extern void assume(in bool check);

// Logs a message, with a {} for every value of `data`.
extern void log_msg(string msg);
extern void log_msg<T>(string msg, in T data);

// --- The pipeline --------------------------------------------------------------------------

parser Parser<H, M>(packet_in b, out H parsedHdr, inout M meta,
                    inout standard_metadata_t standard_metadata);

control VerifyChecksum<H, M>(inout H hdr, inout M meta);

@pipeline
control Ingress<H, M>(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata);

@pipeline
control Egress<H, M>(inout H hdr, inout M meta, inout standard_metadata_t standard_metadata);

control ComputeChecksum<H, M>(inout H hdr, inout M meta);

@deparser
control Deparser<H>(packet_out b, in H hdr);

package V1Switch<H, M>(Parser<H, M> p, VerifyChecksum<H, M> vr, Ingress<H, M> ig,
                       Egress<H, M> eg, ComputeChecksum<H, M> ck, Deparser<H> dep);

#endif
