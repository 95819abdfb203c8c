/*
 * The deparser: the valid headers of a packet, in order.
 */
#ifndef HOPSUM_DEPARSER_P4_
#define HOPSUM_DEPARSER_P4_

#include "headers.p4"

control HopsumDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.outer_tag);
        packet.emit(hdr.inner_tag);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.udp);
        packet.emit(hdr.hopsum);
        packet.emit(hdr.hops);
        packet.emit(hdr.lanes);
    }
}  // control HopsumDeparser

#endif  // HOPSUM_DEPARSER_P4_
