/* Ingress and egress of v1model, as reference/v1model.py has them.

   Order and names follow BMv2's docs/simple_switch.md, "Pseudocode for what happens at the end of
   ingress and egress processing", and simple_switch.cpp. */
#ifndef P4_V1MODEL_H
#define P4_V1MODEL_H

UNUSED static packet *packet_arrives(p4_switch *sw, u32 port, buffer *owner, const u8 *data,
                                     u32 length) {
    packet *p = packet_new(sw);
    if (!p) return NULL;
    packet_reset(p, owner, data, length);
    std_set_ingress_port(p, port);
    std_set_packet_length(p, length);
    std_set_ingress_global_timestamp(p, sw->now);
    return p;
}

/* --- ingress */

INLINE void parse_packet(p4_switch *sw, packet *p) {
    memset(&p->headers, 0, sizeof p->headers);
    run_parser(sw, p, sw->frame);
}

UNUSED static void send_clones(p4_switch *sw, const packet *original, packet *copy,
                               const replication *session, u32 instance_type) {
    copy_field_list(original->clone_list, copy, original);
    std_set_instance_type(copy, instance_type);
    if (session->length) packet_limit(copy, session->length);
    replicate(sw, copy, session);
}

/* The clone is the packet as it came to ingress, parsed again, with metadata of its own. */
UNUSED static void clone_at_ingress(p4_switch *sw, packet *p, u64 ingress_port) {
    const replication *session =
        p->clone_session < CLONE_SESSIONS ? sw->sessions[p->clone_session] : NULL;
    packet *copy = session ? packet_new(sw) : NULL;
    if (!copy) return;
    packet_reset(copy, p->owner, p->data, p->length);
    if (family_join(sw, p, copy)) {
        packet_free(sw, copy);
        return;
    }
    copy->input_length = p->input_length;
    std_set_ingress_port(copy, ingress_port);
    parse_packet(sw, copy);
    if (SPENT(copy)) {
        packet_over(sw, copy);
        return;
    }
    copy->clones = copy->resubmits = copy->recirculates = 0;
    memset(&copy->std, 0, sizeof copy->std);
    memset(&copy->meta, 0, sizeof copy->meta);
    send_clones(sw, p, copy, session, INSTANCE_INGRESS_CLONE);
}

/* The packet for another turn from the parser on; its metadata is new but for the list. What `p`
   may still cost is the new packet's: `p` is at its end. */
UNUSED static packet *packet_again(p4_switch *sw, packet *p, buffer *owner, const u8 *data,
                                   u32 length, u32 field_list, u32 instance_type) {
    packet *again = packet_new(sw);
    if (!again) return NULL;
    packet_reset(again, owner, data, length);
    family_pass_on(p, again);
    copy_field_list(field_list, again, p);
    std_set_instance_type(again, instance_type);
    std_set_packet_length(again, length);
    return again;
}

/* Ingress and what follows it; the packet to resubmit, if it is. */
UNUSED static packet *ingress_once(p4_switch *sw, packet *p) {
    frame *f = sw->frame;
    u64 ingress_port = std_get_ingress_port(p);
    if (spend(sw, p)) return packet_over(sw, p);
    parse_packet(sw, p);
    if (SPENT(p)) return packet_over(sw, p);
    if (UNLIKELY(p->parser_error)) sw->statistics.parser_errors++;
    std_set_parser_error(p, p->parser_error);
    run_verify(sw, p, f);
    if (SPENT(p)) return packet_over(sw, p);
    std_set_checksum_error(p, p->checksum_error);
    run_ingress(sw, p, f);
    if (SPENT(p)) return packet_over(sw, p);

    if (UNLIKELY(p->clones)) {
        p->clones = 0;
        clone_at_ingress(sw, p, ingress_port);
    }
    if (UNLIKELY(p->resubmits)) {
        packet *again = packet_again(sw, p, p->owner, p->data, p->length, p->resubmit_list,
                                     INSTANCE_RESUBMIT);
        if (again) again->input_length = p->input_length;
        packet_free(sw, p);
        return again;
    }
    u32 group = (u32)std_get_mcast_grp(p);
    if (group) {
        std_set_instance_type(p, INSTANCE_REPLICATION);
        replicate(sw, p, sw->groups[group]);
        return NULL;
    }
    u32 port = (u32)std_get_egress_spec(p);
    if (port == sw->drop_port) {
        packet_free(sw, p);
        return NULL;
    }
    std_set_instance_type(p, INSTANCE_NORMAL);
    enqueue(sw, p, port);
    return NULL;
}

/* --- egress */

/* The clone is the packet as it is at the end of egress; it passes egress again. */
UNUSED static void clone_at_egress(p4_switch *sw, packet *p) {
    const replication *session =
        p->clone_session < CLONE_SESSIONS ? sw->sessions[p->clone_session] : NULL;
    if (!session) return;
    packet *copy = packet_twin(sw, p);
    if (!copy) return;
    memset(&copy->std, 0, sizeof copy->std);
    memset(&copy->meta, 0, sizeof copy->meta);
    send_clones(sw, p, copy, session, INSTANCE_EGRESS_CLONE);
}

/* The deparsed frame starts over; its bytes are the end of the output. */
UNUSED static void recirculate_packet(p4_switch *sw, packet *p, size_t start) {
    output *o = sw->out;
    u32 length = (u32)(o->used - start);
    buffer *b = buffer_of(o->bytes + start, length);
    o->used = start;
    if (!b) { sw->out_of_memory = 1; return; }
    packet *again = packet_again(sw, p, b, b->bytes, length, p->recirculate_list, INSTANCE_RECIRC);
    if (!again) { free(b); return; }
    recirculates_later(sw, again);
}

UNUSED static void egress_packet(p4_switch *sw, packet *p, u32 port) {
    frame *f = sw->frame;
    output *o = sw->out;
    if (spend(sw, p)) {
        packet_over(sw, p);
        return;
    }
    std_set_egress_global_timestamp(p, sw->now);
    std_set_deq_timedelta(p, sw->now - p->enqueued);
    std_set_egress_port(p, port);
    std_set_egress_spec(p, sw->drop_port + 1);
    std_set_packet_length(p, p->current_length);
    run_egress(sw, p, f);
    if (SPENT(p)) {
        packet_over(sw, p);
        return;
    }

    if (UNLIKELY(p->clones)) {
        p->clones = 0;
        clone_at_egress(sw, p);
    }
    if (std_get_egress_spec(p) == sw->drop_port) {
        packet_free(sw, p);
        return;
    }
    run_compute(sw, p, f);
    size_t start = sw->emit_start = o->used;
    sw->emitted = 0;
    run_deparser(sw, p, f);
    if (SPENT(p)) {  /* there, or while checksums were computed */
        o->used = start;
        packet_over(sw, p);
        return;
    }
    if (UNLIKELY(append_payload(sw, p))) {
        sw->out_of_memory = 1;
        o->used = start;
        packet_free(sw, p);
        return;
    }
    if (UNLIKELY(p->truncates) && o->used - start > p->truncate_to)
        o->used = start + p->truncate_to;
    if (UNLIKELY(p->recirculates)) {
        recirculate_packet(sw, p, start);
    } else if (UNLIKELY(output_frame(o, start, (u16)port))) {
        sw->out_of_memory = 1;
        o->used = start;
    }
    packet_free(sw, p);
}

#endif
