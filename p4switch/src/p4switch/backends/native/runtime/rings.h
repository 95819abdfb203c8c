/* A port's receive ring: slots of one size that the kernel fills with frames and this process
   empties, without a system call (PACKET_RX_RING, TPACKET_V2: packet(7), and
   Documentation/networking/packet_mmap.rst of the kernel). A frame longer than a slot waits in the
   socket as well, in the order of the slots (TP_STATUS_COPY). */
#ifndef P4_RINGS_H
#define P4_RINGS_H

#include <linux/if_packet.h>

#include "base.h"

/* As in packet_io/receive_ring.py, which makes and keeps it. */
typedef struct {
    u8 *slots;
    u32 count, slot_bytes;
    u32 next;                  /* the slot that the kernel fills next, or has filled */
} receive_ring;

INLINE struct tpacket2_hdr *ring_slot(const receive_ring *r, u32 after_next) {
    return (struct tpacket2_hdr *)
        (r->slots + (size_t)((r->next + after_next) % r->count) * r->slot_bytes);
}

/* TP_STATUS_USER, and what else the kernel says of the frame; 0 while there is none. What it wrote
   to the slot before can be read afterwards. */
INLINE u32 slot_status(const struct tpacket2_hdr *slot) {
    u32 status = __atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE);
    return status & TP_STATUS_USER ? status : 0;
}

/* The first `count` slots are the kernel's again. */
UNUSED static void ring_release(receive_ring *r, u32 count) {
    for (; count; count--) {
        __atomic_store_n(&ring_slot(r, 0)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        r->next = (r->next + 1) % r->count;
    }
}

#endif
