/*
 * The IPv4 checksum of hopsum packets: verified on arrival, recomputed on departure.
 *
 * Their headers have no options (the parser ensures that). Plain packets keep theirs, see
 * forwarding.p4.
 */
#ifndef HOPSUM_CHECKSUMS_P4_
#define HOPSUM_CHECKSUMS_P4_

#include "headers.p4"
#include "metadata.p4"

// Everything in the header but the checksum.
#define IPV4_CHECKSUM_INPUT                                              \
    {                                                                    \
        hdr.ipv4.version,                                                \
        hdr.ipv4.ihl,                                                    \
        hdr.ipv4.tos,                                                    \
        hdr.ipv4.total_length,                                           \
        hdr.ipv4.identification,                                         \
        hdr.ipv4.fragment_flags,                                         \
        hdr.ipv4.fragment_offset,                                        \
        hdr.ipv4.ttl,                                                    \
        hdr.ipv4.protocol,                                               \
        hdr.ipv4.src_addr,                                               \
        hdr.ipv4.dst_addr                                                \
    }

control HopsumVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.hopsum.isValid(), IPV4_CHECKSUM_INPUT, hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}  // control HopsumVerifyChecksum

control HopsumComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.hopsum.isValid(), IPV4_CHECKSUM_INPUT, hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}  // control HopsumComputeChecksum

#endif  // HOPSUM_CHECKSUMS_P4_
