/*
 * Priorities: which egress queue a packet waits in.
 *
 * Decided from the class selector of its IP ToS byte (RFC 2474): the controller gives every job a
 * level, its agents mark their packets with it, and sums and results are marked as the packets that
 * they came from. Queue 7 goes first; what is not marked, and what is not IP, waits in queue 0.
 *
 * BMv2 needs --priority-queues 8: it drops what belongs in a queue that it does not have.
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
