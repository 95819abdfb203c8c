/*
 * Congestion: whether a packet met a long queue on its way out, and one that does not drain.
 *
 * Decided from the packets queued at its port when it was queued there, and from how long none
 * of its priority has met a short queue. A burst drains by itself, so it is no congestion,
 * however long; what stands in the queue never drains (CoDel, RFC 8289). The mark is in the
 * hopsum header: slots keep it for the sum, the server for the result, so workers learn of
 * congestion anywhere on the way up or down, for any packet that met it. Plain packets of
 * ECN-capable hosts are marked by RFC 3168; others are not changed.
 */
#ifndef HOPSUM_CONGESTION_P4_
#define HOPSUM_CONGESTION_P4_

#include "headers.p4"
#include "outcomes.p4"

// Minimum length of a long queue: an eighth of an egress queue of BMv2, ...
const bit<19> CONGESTED_DEPTH = 8;

// ... plus up to this many, by the clock's last bits (us). With a fixed threshold, a flow whose
// packets always arrive just after a departure would never be marked, and another always (Floyd and
// Jacobson, "On Traffic Phase Effects in Packet-Switched Gateways", 1992). The longer the queue, the
// larger the fraction of marked packets, as in RFC 2309.
const bit<32> CONGESTED_SPREAD = 63;

// A queue that has been long for this time (us) does not drain. Switches and agents in software take
// packets in together, after pauses of some milliseconds, and what has come in meanwhile leaves in
// about the same time.
const bit<32> STANDING_TIME = 10000;

// Ports times priorities.
const bit<32> PRIORITY_QUEUES = 4096;

// RFC 3168: ECT(0) and ECT(1) say that the hosts understand CE.
const bit<2> NOT_ECN_CAPABLE = 0;
const bit<2> CONGESTION_EXPERIENCED = 3;

control Congestion(inout headers_t hdr, in standard_metadata_t standard_metadata) {
    // By port and priority, since what leaves later is not in a packet's queue: the last time (us)
    // when a packet met a short one.
    register<bit<32>>(PRIORITY_QUEUES) short_queue_times;

    apply {
        bit<32> queue = (bit<32>)(standard_metadata.egress_port ++ standard_metadata.priority);
        bit<32> now = standard_metadata.enq_timestamp;
        bit<32> short_queue_time = now;
        if (standard_metadata.enq_qdepth < CONGESTED_DEPTH) {
            short_queue_times.write(queue, now);
        } else {
            short_queue_times.read(short_queue_time, queue);
        }
        bit<19> long_queue = CONGESTED_DEPTH + (bit<19>)(now & CONGESTED_SPREAD);
        if (standard_metadata.egress_port != CPU_PORT
            && now - short_queue_time >= STANDING_TIME
            && standard_metadata.enq_qdepth >= long_queue) {
            if (hdr.hopsum.isValid()) {
                outcomes.count(OUTCOME_CONGESTED);
                hdr.hopsum.ecn = 1;
            } else if (hdr.ipv4.isValid()
                       && hdr.ipv4.tos[1:0] != NOT_ECN_CAPABLE
                       && hdr.ipv4.tos[1:0] != CONGESTION_EXPERIENCED) {
                outcomes.count(OUTCOME_CONGESTED);
                // Checksum by RFC 1624, as in forwarding.p4: the change of the first word.
                bit<17> sum = (bit<17>)~hdr.ipv4.checksum
                              + (bit<17>)(CONGESTION_EXPERIENCED - hdr.ipv4.tos[1:0]);
                hdr.ipv4.checksum = ~(sum[15:0] + (bit<16>)sum[16:16]);
                hdr.ipv4.tos[1:0] = CONGESTION_EXPERIENCED;
            }
        }
    }
}  // control Congestion

#endif  // HOPSUM_CONGESTION_P4_
