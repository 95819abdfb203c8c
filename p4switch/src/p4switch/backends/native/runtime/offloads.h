/* What a sender left to its network card: checksums of TCP and UDP, and cutting TCP's long segments.

   A veth pair has no card. It hands frames over with the checksum of the pseudo-header only
   (TP_STATUS_CSUMNOTREADY), and TCP's segments as one frame of up to 64 KiB, from which a switch
   makes those that would have come over a cable. device/offloads.py does the same in Python. */
#ifndef P4_OFFLOADS_H
#define P4_OFFLOADS_H

#include "hashes.h"

#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define TCP_FIN_PSH 0x09
#define TCP_CWR 0x80

/* Where the parts of a frame begin, and where the IP packet ends. */
typedef struct {
    u32 ip, transport, payload, end;
    u8 protocol;
    u8 version;
} transport_place;

/* 0 if the frame has no whole TCP segment or UDP datagram right after its IP header. */
static int transport_find(const u8 *f, u32 length, transport_place *t) {
    u32 at = 12, type = 0;
    for (; at + 2 <= length; at += 4) {
        type = load_be16(f + at);
        if (type != 0x8100 && type != 0x88a8) break;
    }
    t->ip = at + 2;
    if (type == 0x0800 && t->ip + 20 <= length) {
        t->version = 4;
        t->protocol = f[t->ip + 9];
        t->transport = t->ip + (f[t->ip] & 15u) * 4;
        t->end = t->ip + load_be16(f + t->ip + 2);
        if (load_be16(f + t->ip + 6) & 0x3fff) return 0;  /* a fragment */
    } else if (type == 0x86dd && t->ip + 40 <= length) {
        t->version = 6;
        t->protocol = f[t->ip + 6];
        t->transport = t->ip + 40;
        t->end = t->transport + load_be16(f + t->ip + 4);
    } else {
        return 0;
    }
    if (t->end > length || t->transport < t->ip + 20) return 0;
    if (t->protocol == PROTOCOL_TCP && t->transport + 20 <= t->end) {
        t->payload = t->transport + (f[t->transport + 12] >> 4) * 4u;
        if (t->payload < t->transport + 20) return 0;  /* make_segment writes the whole header */
    } else if (t->protocol == PROTOCOL_UDP) {
        t->payload = t->transport + 8;
    } else {
        return 0;
    }
    return t->payload <= t->end;
}

/* RFC 9293, RFC 768 and RFC 8200, section 8.1. */
static void transport_checksum(u8 *f, const transport_place *t) {
    u8 *field = f + t->transport + (t->protocol == PROTOCOL_TCP ? 16 : 6);
    u32 length = t->end - t->transport;
    u64 sum = t->protocol + length;
    store_be16(field, 0);
    sum = t->version == 4 ? sum16(sum, f + t->ip + 12, 8) : sum16(sum, f + t->ip + 8, 32);
    u16 checksum = (u16)fold16(sum16(sum, f + t->transport, length));
    if (!checksum && t->protocol == PROTOCOL_UDP) checksum = 0xffff;  /* 0 means none */
    store_be16(field, checksum);
}

/* Completes a frame's checksum. */
UNUSED static void complete_checksum(u8 *f, u32 length) {
    transport_place t;
    if (transport_find(f, length, &t)) transport_checksum(f, &t);
}

/* Bytes of payload in each segment of a frame that is longer than `mtu` allows; 0 if it is not, or
   is no TCP. */
UNUSED static u32 segment_payload(const u8 *f, u32 length, u32 mtu, transport_place *t) {
    if (!transport_find(f, length, t) || t->protocol != PROTOCOL_TCP) return 0;
    if (t->end - t->ip <= mtu || t->payload - t->ip >= mtu) return 0;
    return mtu - (t->payload - t->ip);
}

/* Makes the segment whose payload is `count` bytes, `at` bytes after the first; `to` has room for
   them and the headers. Returns its length. */
UNUSED static u32 make_segment(u8 *to, const u8 *f, const transport_place *whole, u32 at,
                               u32 count, u32 number) {
    transport_place t = *whole;
    memcpy(to, f, t.payload);
    memcpy(to + t.payload, f + t.payload + at, count);
    t.end = t.payload + count;
    u8 *ip = to + t.ip, *tcp = to + t.transport;
    if (t.version == 4) {
        store_be16(ip + 2, (u16)(t.end - t.ip));
        store_be16(ip + 4, (u16)(load_be16(ip + 4) + number));
        store_be16(ip + 10, 0);
        store_be16(ip + 10, (u16)hash_csum16(ip, t.transport - t.ip));
    } else {
        store_be16(ip + 4, (u16)(t.end - t.transport));
    }
    store_be32(tcp + 4, load_be32(tcp + 4) + at);
    if (whole->payload + at + count < whole->end) tcp[13] &= (u8)~TCP_FIN_PSH;
    if (at) tcp[13] &= (u8)~TCP_CWR;
    transport_checksum(to, &t);
    return t.end;
}

#endif
