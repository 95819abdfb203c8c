/*
 * The state of a slot without its lanes: one register cell.
 *
 * It is read before the state machine decides and written after it, in ingress, which
 * BMv2 runs in one thread, packet by packet. An all-zero cell is an empty slot: jobs are
 * numbered from 1.
 *
 *     639     635      619    611     595        563     553      543      527        519
 *     | width | job 16 | tree | epoch | fragment | count | fan-in | weight | exponent |
 *                                 | reduction | cleared | overflow | ecn | kept | children |
 *                                 519         515       514        513   512    511        0
 *
 * The children lie on whole 64-bit words, which engines in software copy fastest.
 */
#ifndef HOPSUM_SLOT_MEMORY_P4_
#define HOPSUM_SLOT_MEMORY_P4_

#include "metadata.p4"

typedef bit<640> slot_cell_t;

register<slot_cell_t>(SLOTS) slot_cells;

control ReadSlot(inout metadata_t meta) {
    action read_slot() {
        slot_cell_t cell;
        slot_cells.read(cell, meta.slot_index);
        meta.slot.children = cell[511:0];
        meta.slot.width = (width_t)cell[639:636];
        meta.slot.job = cell[635:620];
        meta.slot.tree = cell[619:612];
        meta.slot.epoch = cell[611:596];
        meta.slot.fragment = cell[595:564];
        meta.slot.count = cell[563:554];
        meta.slot.fan_in = cell[553:544];
        meta.slot.weight = cell[543:528];
        meta.slot.exponent = cell[527:520];
        meta.slot.reduction = (reduction_t)cell[519:516];
        meta.slot.cleared = cell[515:515];
        meta.slot.overflow = cell[514:514];
        meta.slot.ecn = cell[513:513];
        meta.slot.kept = cell[512:512];
        // A kept result has those of a result, everything else those of a contribution.
        meta.slot_has_lanes = meta.slot.reduction != reduction_t.NONE
            && (meta.slot.kept == 1
                ? (bit<4>)meta.slot.reduction < (bit<4>)reduction_t.REDUCE_SUM
                : meta.slot.reduction != reduction_t.BROADCAST);
    }

    apply {
        read_slot();
    }
}  // control ReadSlot

control WriteSlot(in metadata_t meta) {
    action write_slot() {
        slot_cells.write(meta.slot_index,
            (bit<4>)meta.slot.width
            ++ meta.slot.job ++ meta.slot.tree ++ meta.slot.epoch ++ meta.slot.fragment
            ++ meta.slot.count ++ meta.slot.fan_in
            ++ meta.slot.weight ++ meta.slot.exponent ++ (bit<4>)meta.slot.reduction
            ++ meta.slot.cleared ++ meta.slot.overflow ++ meta.slot.ecn ++ meta.slot.kept
            ++ meta.slot.children);
    }

    apply {
        write_slot();
    }
}  // control WriteSlot

#endif  // HOPSUM_SLOT_MEMORY_P4_
