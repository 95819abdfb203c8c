// The core library of P4_16, as the language specification 1.2.5 gives it (appendix D):
// what every program may use on every architecture.

#ifndef _CORE_P4_
#define _CORE_P4_

error {
    NoError,
    PacketTooShort,         // extract, advance or lookahead beyond the end of the packet
    NoMatch,                // a select none of whose cases matched
    StackOutOfBounds,       // a header stack indexed outside its size
    HeaderTooShort,         // more bits for a varbit field than it can hold
    ParserTimeout,          // more parser states than the target allows
    ParserInvalidArgument   // a parser operation called with a value it does not support
}

match_kind {
    exact,
    ternary,
    lpm
}

extern packet_in {
    // Fills a header of fixed size and moves the cursor past it.
    void extract<T>(out T hdr);
    // The same for a header with one varbit field, whose size in bits is given.
    void extract<T>(out T variableSizeHeader, in bit<32> variableFieldSizeInBits);
    // Reads without moving the cursor.
    T lookahead<T>();
    // Moves the cursor by a number of bits.
    void advance(in bit<32> sizeInBits);
    // Length of the whole packet in bytes.
    bit<32> length();
}

extern packet_out {
    // Appends a valid header; for a stack, union or struct its valid headers in order.
    void emit<T>(in T hdr);
}

// Ends parsing with error `toSignal` unless `check` holds. Parsers only.
extern void verify(in bool check, in error toSignal);

// Stops compilation with the message unless `check`, known at compile time, holds.
extern bool static_assert(bool check, string message);
extern bool static_assert(bool check);

@noWarn("unused")
action NoAction() {}

#endif
