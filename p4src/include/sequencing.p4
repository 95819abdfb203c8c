/*
 * Sequence numbers between neighbours: losses on a link, and the fragment of each number.
 *
 * Aggregating nodes number the frames of a tree that they send to a neighbour, sums up and
 * results down, from 0 in each epoch. A gap in the numbers is a loss on that one link, and
 * only the neighbour is asked to retransmit it, under the same number (after LinkGuardian, SIGCOMM
 * 2023, whose switches have separate buffers; here slots serve as buffers).
 *
 *     a frame arrives: Arrivals -> the number to request
 *     a frame is sent: SentLog.record -> its number
 *     a request arrives: SentLog.find -> the fragment, hence the slot
 */
#ifndef HOPSUM_SEQUENCING_P4_
#define HOPSUM_SEQUENCING_P4_

#include "headers.p4"
#include "metadata.p4"

typedef bit<64> history_t;  // bit i: i numbers before the newest

// Positions at which a missing number is requested again, after 7, 15, 23, ... later numbers.
const history_t RETRY = 0x8080808080808080;

// Frames received from one neighbour: the last 64 numbers, one request per arriving frame.
control Arrivals(in slot_index_t index,
                 in hopsum_t ours,
                 out bool asks,
                 out sequence_t missing,
                 out bool again) {
    // job, tree, epoch, newest number; numbers received; numbers requested
    register<bit<184>>(SLOTS) cells;

    bit<184> cell;
    bit<40> owner;
    sequence_t newest;
    history_t arrived;
    history_t asked;
    sequence_t lead;
    history_t gap;
    bit<6> back;
    bit<8> shift;  // BMv2's maximum width of shift amounts
    bool counts;

    action read_cell() {
        cells.read(cell, index);
        owner = ours.job ++ ours.tree ++ ours.epoch;
        newest = cell[143:128];
        arrived = cell[127:64];
        asked = cell[63:0];
        lead = ours.sequence - newest;
    }

    // Earlier numbers are unknown, except that numbers start at 0.
    action begin() {
        arrived = ours.sequence < 64
            ? (~(history_t)0 << ours.sequence[7:0] << 1) | 1 : ~(history_t)0;
        asked = 0;
        newest = ours.sequence;
    }

    action advance() {
        shift = lead < 64 ? lead[7:0] : 64;
        arrived = (arrived << shift) | 1;
        asked = (asked << shift) & ~RETRY;
        newest = ours.sequence;
    }

    action fill_in() {
        shift = (bit<8>)(newest - ours.sequence);
        again = ((arrived >> shift) & 1) == 1;
        arrived = arrived | ((history_t)1 << shift);
    }

    // The latest missing number that has not been requested: its bit, and its position.
    action ask() {
        gap = gap & (~gap + 1);
        asked = asked | gap;
        back[5:5] = (bit<1>)((gap & 0xFFFFFFFF00000000) != 0);
        back[4:4] = (bit<1>)((gap & 0xFFFF0000FFFF0000) != 0);
        back[3:3] = (bit<1>)((gap & 0xFF00FF00FF00FF00) != 0);
        back[2:2] = (bit<1>)((gap & 0xF0F0F0F0F0F0F0F0) != 0);
        back[1:1] = (bit<1>)((gap & 0xCCCCCCCCCCCCCCCC) != 0);
        back[0:0] = (bit<1>)((gap & 0xAAAAAAAAAAAAAAAA) != 0);
        missing = newest - (sequence_t)back;
        asks = true;
    }

    action write_cell() {
        cells.write(index, owner ++ newest ++ arrived ++ asked);
    }

    apply {
        asks = false;
        missing = 0;
        again = false;
        back = 0;
        read_cell();
        counts = true;
        if (cell[183:144] == owner && (lead == 0 || lead > 0xFFC0)) {
            fill_in();
        } else if (ours.repair == 1) {
            counts = false;  // an answer that is no longer needed
        } else if (cell[183:144] == owner && lead < 0x8000) {
            advance();
        } else if (cell[183:160] == owner[39:16] && cell[159:144] - ours.epoch - 1 < 0x7FFF) {
            counts = false;  // of an older epoch
        } else {
            begin();  // a new epoch, or a neighbour that has rebooted
        }
        if (counts) {
            gap = ~(arrived | asked);
            // The request is made from the frame, and its answer has no room for more: a prologue
            // leaves the request to the next frame.
            if (gap != 0 && ours.reduction != reduction_t.NONE) {
                ask();
            }
            write_cell();
        }
    }
}  // control Arrivals

// Frames sent to one neighbour, or to all children: a window of numbers.
control SentLog(in hopsum_t ours,
                in slot_index_t slot_base,
                in fragment_t window_mask,
                in bool records,
                out sequence_t sequence,
                out fragment_t fragment,
                out bool found) {
    register<bit<56>>(SLOTS) next_numbers;  // job, tree, epoch, number
    register<bit<48>>(SLOTS) entries;       // number, fragment

    bit<56> next;
    bit<48> entry;

    action record() {
        found = true;
        sequence = next[55:16] == ours.job ++ ours.tree ++ ours.epoch ? next[15:0] : 0;
        next_numbers.write(slot_base & SLOT_MASK,
            ours.job ++ ours.tree ++ ours.epoch ++ (sequence + 1));
        entries.write((slot_base + ((fragment_t)sequence & window_mask)) & SLOT_MASK,
            sequence ++ ours.fragment);
    }

    action find() {
        entries.read(entry, (slot_base + ((fragment_t)ours.sequence & window_mask)) & SLOT_MASK);
        found = entry[47:32] == ours.sequence;
        fragment = entry[31:0];
    }

    apply {
        sequence = ours.sequence;
        fragment = ours.fragment;
        found = false;
        if (records) {
            next_numbers.read(next, slot_base & SLOT_MASK);
            // Late frames of an older epoch get no number: the newer epoch's numbers continue.
            if (next[55:32] != ours.job ++ ours.tree || next[31:16] - ours.epoch - 1 >= 0x7FFF) {
                record();
            }
        } else {
            find();
        }
    }
}  // control SentLog

#endif  // HOPSUM_SEQUENCING_P4_
