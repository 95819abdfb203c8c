/*
 * Congestion: whether a packet met a long queue on its way out.
 *
 * Decided from the packets that waited at its port when it was queued there. The mark is the
 * hopsum header's own: slots keep it for the sum, the server for the result, so workers learn of
 * a full queue anywhere on the way up or down, whichever packet it was that met it.
 */
#ifndef HOPSUM_CONGESTION_P4_
#define HOPSUM_CONGESTION_P4_

#include "headers.p4"
#include "outcomes.p4"

// Half of what an egress queue of BMv2 holds.
const bit<19> CONGESTED_DEPTH = 32;

control Congestion(inout headers_t hdr, in standard_metadata_t standard_metadata) {
    apply {
        if (hdr.hopsum.isValid()
            && standard_metadata.egress_port != CPU_PORT
            && standard_metadata.enq_qdepth >= CONGESTED_DEPTH) {
            outcomes.count(OUTCOME_CONGESTED);
            hdr.hopsum.ecn = 1;
        }
    }
}  // control Congestion

#endif  // HOPSUM_CONGESTION_P4_
