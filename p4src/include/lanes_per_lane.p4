/*
 * The lanes, one register each: operations on the lanes of slot and packet.
 *
 * Values of 16 and of 8 bits are added and compared as lanes_wide.p4 says, with their sign bits as
 * an argument; for those of 32 bits there is an addition, and a comparison.
 *
 * Real pipelines need this form, since their registers' access units are as wide as one
 * lane, or as a pair of values in it. Packets are the same as those of lanes_wide.p4.
 *
 * A lane's name is its group of 32 and its number in the group, in octal: lane_0_00 to lane_0_37,
 * then lane_1_00, and so on.
 */
#ifndef HOPSUM_LANES_P4_
#define HOPSUM_LANES_P4_

#include "types.p4"

// FOR_EACH_LANE(X): X(name) for each lane of a packet.

#define GROUP_8(X, p) X(p##0) X(p##1) X(p##2) X(p##3) X(p##4) X(p##5) X(p##6) X(p##7)
#define GROUP(X, p) GROUP_8(X, p##0) GROUP_8(X, p##1) GROUP_8(X, p##2) GROUP_8(X, p##3)

#define LANES_TO_32(X)  GROUP(X, lane_0_)
#define LANES_TO_64(X)  LANES_TO_32(X)  GROUP(X, lane_1_)
#define LANES_TO_96(X)  LANES_TO_64(X)  GROUP(X, lane_2_)
#define LANES_TO_128(X) LANES_TO_96(X)  GROUP(X, lane_3_)
#define LANES_TO_160(X) LANES_TO_128(X) GROUP(X, lane_4_)
#define LANES_TO_192(X) LANES_TO_160(X) GROUP(X, lane_5_)
#define LANES_TO_224(X) LANES_TO_192(X) GROUP(X, lane_6_)
#define LANES_TO_256(X) LANES_TO_224(X) GROUP(X, lane_7_)
#define LANES_TO_288(X) LANES_TO_256(X) GROUP(X, lane_8_)
#define LANES_TO_320(X) LANES_TO_288(X) GROUP(X, lane_9_)
#define LANES_TO_352(X) LANES_TO_320(X) GROUP(X, lane_10_)

#define PASTE(a, b) a##b
#define LANES_TO(lanes) PASTE(LANES_TO_, lanes)
#define FOR_EACH_LANE(X) LANES_TO(LANES)(X)

const bit<32> SIGNS_16 = 0x80008000;
const bit<32> SIGNS_8 = 0x80808080;

#define LANE_FIELD(lane) bit<32> lane;

header lanes_t {
    FOR_EACH_LANE(LANE_FIELD)
}

#define LANE_REGISTER(lane) register<bit<32>>(SLOTS) lane##_cells;

#define STORE_LANE(lane) lane##_cells.write(slot, lanes.lane);

#define LOAD_LANE(lane) lane##_cells.read(lanes.lane, slot);

#define ADD_LANE(lane)                                                   \
    lane##_cells.read(a, slot);                                          \
    b = lanes.lane;                                                      \
    lanes.lane = a + b;                                                  \
    lane##_cells.write(slot, lanes.lane);                                \
    signs = signs | (~(a ^ b) & (a ^ lanes.lane));

#define ADD_NARROW_LANE(lane)                                            \
    lane##_cells.read(a, slot);                                          \
    b = lanes.lane;                                                      \
    lanes.lane = ((a & rest) + (b & rest)) ^ ((a ^ b) & sign);           \
    lane##_cells.write(slot, lanes.lane);                                \
    signs = signs | (~(a ^ b) & (a ^ lanes.lane));

#define AND_LANE(lane)                                                   \
    lane##_cells.read(a, slot);                                          \
    lanes.lane = lanes.lane & a;                                         \
    lane##_cells.write(slot, lanes.lane);

#define MAX_LANE(lane)                                                   \
    lane##_cells.read(a, slot);                                          \
    lanes.lane = (int<32>)a > (int<32>)lanes.lane ? a : lanes.lane;      \
    lane##_cells.write(slot, lanes.lane);

// See lanes_wide.p4.
#define MAX_NARROW_LANE(lane)                                            \
    lane##_cells.read(a, slot);                                          \
    b = lanes.lane;                                                      \
    more = (a | sign) - (b & rest);                                      \
    holds = ((~(a ^ b) & more) | ((a ^ b) & b)) & sign;                  \
    holds = holds | (holds - (holds >> top));                            \
    lanes.lane = (a & holds) | (b & ~holds);                             \
    lane##_cells.write(slot, lanes.lane);

#define XOR_LANE(lane)                                                   \
    lane##_cells.read(a, slot);                                          \
    lanes.lane = lanes.lane ^ a;                                         \
    lane##_cells.write(slot, lanes.lane);

control Lanes(inout lanes_t lanes,
              in lanes_operation_t operation,
              in reduction_t reduction,
              in width_t width,
              in slot_index_t slot,
              inout bool wrapped) {
    FOR_EACH_LANE(LANE_REGISTER)

    action store() {
        FOR_EACH_LANE(STORE_LANE)
    }

    action load() {
        FOR_EACH_LANE(LOAD_LANE)
    }

    action add() {
        bit<32> a;
        bit<32> b;
        bit<32> signs = 0;
        FOR_EACH_LANE(ADD_LANE)
        wrapped = signs[31:31] == 1;
    }

    // `sign`: the sign bits of the values in a lane.
    action add_narrow(in bit<32> sign) {
        bit<32> rest = ~sign;
        bit<32> a;
        bit<32> b;
        bit<32> signs = 0;
        FOR_EACH_LANE(ADD_NARROW_LANE)
        wrapped = (signs & sign) != 0;
    }

    action bitwise_and() {
        bit<32> a;
        FOR_EACH_LANE(AND_LANE)
    }

    action keep_greater() {
        bit<32> a;
        FOR_EACH_LANE(MAX_LANE)
    }

    // `top`: the number of a value's sign bit.
    action keep_greater_narrow(in bit<32> sign, in bit<8> top) {
        bit<32> rest = ~sign;
        bit<32> a;
        bit<32> b;
        bit<32> more;
        bit<32> holds;
        FOR_EACH_LANE(MAX_NARROW_LANE)
    }

    action bitwise_xor() {
        bit<32> a;
        FOR_EACH_LANE(XOR_LANE)
    }

    apply {
        if (operation == lanes_operation_t.STORE) {
            store();
        } else if (operation == lanes_operation_t.LOAD) {
            load();
        } else if (operation == lanes_operation_t.COMBINE) {
            if (reduction == reduction_t.SUM || reduction == reduction_t.REDUCE_SUM) {
                if (width == width_t.WIDTH_32) {
                    add();
                } else if (width == width_t.WIDTH_16) {
                    add_narrow(SIGNS_16);
                } else {
                    add_narrow(SIGNS_8);
                }
            } else if (reduction == reduction_t.AND || reduction == reduction_t.REDUCE_AND) {
                bitwise_and();
            } else if (reduction == reduction_t.MAX || reduction == reduction_t.REDUCE_MAX) {
                if (width == width_t.WIDTH_32) {
                    keep_greater();
                } else if (width == width_t.WIDTH_16) {
                    keep_greater_narrow(SIGNS_16, 15);
                } else {
                    keep_greater_narrow(SIGNS_8, 7);
                }
            } else {
                bitwise_xor();
            }
        }
    }
}  // control Lanes

#endif  // HOPSUM_LANES_P4_
