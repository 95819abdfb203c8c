/*
 * Priorities: the egress queue of a packet.
 *
 * Decided from the class selector of its IP ToS byte (RFC 2474): the controller gives every job a
 * level, its agents mark their packets with it, and sums and results are marked as the packets that
 * they come from. Queue 7 is served first; unmarked and non-IP packets use queue 0.
 *
 * BMv2 needs --priority-queues 8: it drops packets for queues that it does not have.
 */
#ifndef HOPSUM_PRIORITIES_P4_
#define HOPSUM_PRIORITIES_P4_

#include "headers.p4"

control Priorities(in headers_t hdr, inout standard_metadata_t standard_metadata) {
    apply {
        if (hdr.ipv4.isValid()) {
            standard_metadata.priority = hdr.hopsum.isValid() && hdr.ipv4.tos[4:4] == 1
                ? FIRST_QUEUE : hdr.ipv4.tos[7:5];
        }
    }
}  // control Priorities

#endif  // HOPSUM_PRIORITIES_P4_
