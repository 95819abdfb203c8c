/*
 * The lanes, 64 per word: operations on the lanes of slot and packet.
 *
 * A word is bit<2048>, the widest that p4c accepts; 32 remaining lanes make half a word. A lane has
 * one value of 32 bits, two of 16 or four of 8. All values of a word are added at once. Their sign
 * bits are excluded from the addition, so that no carry leaves its value, and are added by
 * exclusive or:
 *
 *     sum = ((a & rest) + (b & rest)) ^ ((a ^ b) & sign)
 *
 * A value wrapped around if both operands have one sign and the sum has the other.
 *
 * Likewise all values of a word are compared at once. With equal signs, the other bits decide: a
 * sign bit set in front of those of `a` survives the subtraction of `b`'s unless a < b.
 * No borrow leaves its value.
 */
#ifndef HOPSUM_LANES_P4_
#define HOPSUM_LANES_P4_

#include "types.p4"

// FOR_EACH_WORD(X): X(name, width) for each word of a packet. The number in a name counts lanes.

#define HALF(X) X(half_word, 1024)

#define WORDS_OF_32(X)  HALF(X)
#define WORDS_OF_64(X)  X(word0, 2048)
#define WORDS_OF_96(X)  WORDS_OF_64(X) HALF(X)
#define WORDS_OF_128(X) WORDS_OF_64(X) X(word1, 2048)
#define WORDS_OF_160(X) WORDS_OF_128(X) HALF(X)
#define WORDS_OF_192(X) WORDS_OF_128(X) X(word2, 2048)
#define WORDS_OF_224(X) WORDS_OF_192(X) HALF(X)
#define WORDS_OF_256(X) WORDS_OF_192(X) X(word3, 2048)
#define WORDS_OF_288(X) WORDS_OF_256(X) HALF(X)
#define WORDS_OF_320(X) WORDS_OF_256(X) X(word4, 2048)
#define WORDS_OF_352(X) WORDS_OF_320(X) HALF(X)

#define PASTE(a, b) a##b
#define WORDS_OF(lanes) PASTE(WORDS_OF_, lanes)
#define FOR_EACH_WORD(X) WORDS_OF(LANES)(X)

// The sign bits of the values of a word, which are 32, 16 or 8 bits wide.

#define FOUR(bits) (bits ++ bits ++ bits ++ bits)

const bit<512>  SIGNS_32_X16 = FOUR(FOUR(32w0x80000000));
const bit<512>  SIGNS_16_X32 = FOUR(FOUR(32w0x80008000));
const bit<512>  SIGNS_8_X64 = FOUR(FOUR(32w0x80808080));
const bit<2048> SIGNS_32 = FOUR(SIGNS_32_X16);
const bit<2048> SIGNS_16 = FOUR(SIGNS_16_X32);
const bit<2048> SIGNS_8 = FOUR(SIGNS_8_X64);

#define WORD_FIELD(word, width) bit<width> word;

header lanes_t {
    FOR_EACH_WORD(WORD_FIELD)
}

#define WORD_REGISTER(word, width) register<bit<width>>(SLOTS) word##_cells;

#define STORE_WORD(word, width) word##_cells.write(slot, lanes.word);

#define LOAD_WORD(word, width) word##_cells.read(lanes.word, slot);

#define ADD_VALUES(word, width, signs)                                   \
    {                                                                    \
        const bit<width> sign = (bit<width>)signs;                       \
        const bit<width> rest = ~sign;                                   \
        bit<width> a;                                                    \
        bit<width> b = lanes.word;                                       \
        word##_cells.read(a, slot);                                      \
        lanes.word = ((a & rest) + (b & rest)) ^ ((a ^ b) & sign);       \
        word##_cells.write(slot, lanes.word);                            \
        wrapped = wrapped                                                \
            || (~(a ^ b) & (a ^ lanes.word) & sign) != 0;                \
    }

#define ADD_WORD_32(word, width) ADD_VALUES(word, width, SIGNS_32)
#define ADD_WORD_16(word, width) ADD_VALUES(word, width, SIGNS_16)
#define ADD_WORD_8(word, width)  ADD_VALUES(word, width, SIGNS_8)

#define AND_WORD(word, width)                                            \
    {                                                                    \
        bit<width> a;                                                    \
        word##_cells.read(a, slot);                                      \
        lanes.word = lanes.word & a;                                     \
        word##_cells.write(slot, lanes.word);                            \
    }

#define KEEP_GREATER_VALUES(word, width, signs, bits)                    \
    {                                                                    \
        const bit<width> sign = (bit<width>)signs;                       \
        const bit<width> rest = ~sign;                                   \
        bit<width> a;                                                    \
        bit<width> b = lanes.word;                                       \
        word##_cells.read(a, slot);                                      \
        bit<width> differs = a ^ b;                                      \
        bit<width> more = (a | sign) - (b & rest);                       \
        /* The sign bits of values with a >= b, then all their bits. */  \
        bit<width> holds = ((~differs & more) | (differs & b)) & sign;   \
        holds = holds | (holds - (holds >> (bits - 1)));                 \
        lanes.word = (a & holds) | (b & ~holds);                         \
        word##_cells.write(slot, lanes.word);                            \
    }

#define MAX_WORD_32(word, width) KEEP_GREATER_VALUES(word, width, SIGNS_32, 32)
#define MAX_WORD_16(word, width) KEEP_GREATER_VALUES(word, width, SIGNS_16, 16)
#define MAX_WORD_8(word, width)  KEEP_GREATER_VALUES(word, width, SIGNS_8, 8)

#define XOR_WORD(word, width)                                            \
    {                                                                    \
        bit<width> a;                                                    \
        word##_cells.read(a, slot);                                      \
        lanes.word = lanes.word ^ a;                                     \
        word##_cells.write(slot, lanes.word);                            \
    }

control Lanes(inout lanes_t lanes,
              in lanes_operation_t operation,
              in reduction_t reduction,
              in width_t width,
              in slot_index_t slot,
              inout bool wrapped) {
    FOR_EACH_WORD(WORD_REGISTER)

    action store() {
        FOR_EACH_WORD(STORE_WORD)
    }

    action load() {
        FOR_EACH_WORD(LOAD_WORD)
    }

    action add_32() {
        FOR_EACH_WORD(ADD_WORD_32)
    }

    action add_16() {
        FOR_EACH_WORD(ADD_WORD_16)
    }

    action add_8() {
        FOR_EACH_WORD(ADD_WORD_8)
    }

    action bitwise_and() {
        FOR_EACH_WORD(AND_WORD)
    }

    action keep_greater_32() {
        FOR_EACH_WORD(MAX_WORD_32)
    }

    action keep_greater_16() {
        FOR_EACH_WORD(MAX_WORD_16)
    }

    action keep_greater_8() {
        FOR_EACH_WORD(MAX_WORD_8)
    }

    action bitwise_xor() {
        FOR_EACH_WORD(XOR_WORD)
    }

    apply {
        if (operation == lanes_operation_t.STORE) {
            store();
        } else if (operation == lanes_operation_t.LOAD) {
            load();
        } else if (operation == lanes_operation_t.COMBINE) {
            if (reduction == reduction_t.SUM || reduction == reduction_t.REDUCE_SUM) {
                if (width == width_t.WIDTH_32) {
                    add_32();
                } else if (width == width_t.WIDTH_16) {
                    add_16();
                } else {
                    add_8();
                }
            } else if (reduction == reduction_t.AND || reduction == reduction_t.REDUCE_AND) {
                bitwise_and();
            } else if (reduction == reduction_t.MAX || reduction == reduction_t.REDUCE_MAX) {
                if (width == width_t.WIDTH_32) {
                    keep_greater_32();
                } else if (width == width_t.WIDTH_16) {
                    keep_greater_16();
                } else {
                    keep_greater_8();
                }
            } else {
                bitwise_xor();
            }
        }
    }
}  // control Lanes

#endif  // HOPSUM_LANES_P4_
