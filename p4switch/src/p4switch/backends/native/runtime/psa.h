/* Ingress and egress of PSA, as reference/psa.py has them: each parses what it gets, and deparses
   what it passes on. */
#ifndef P4_PSA_H
#define P4_PSA_H

/* PSA_PacketPath_t. */
enum {
    PATH_NORMAL, PATH_NORMAL_UNICAST, PATH_NORMAL_MULTICAST, PATH_CLONE_I2E, PATH_CLONE_E2E,
    PATH_RESUBMIT, PATH_RECIRCULATE
};

/* Ports of programs that the switch has under other numbers (targets/psa/ports.py). */
#define RECIRCULATE_PORT 0xfffffffau
#define CPU_PORT 0xfffffffdu
#define RECIRCULATE_QUEUE 511u

INLINE u32 program_port(const p4_switch *sw, u32 port) {
    if (port == RECIRCULATE_QUEUE) return RECIRCULATE_PORT;
    return port == sw->cpu_port ? CPU_PORT : port;
}

/* PORTS and more: there is no such port. */
INLINE u32 switch_port(const p4_switch *sw, u32 port) {
    if (port == RECIRCULATE_PORT) return RECIRCULATE_QUEUE;
    if (port == CPU_PORT) return sw->cpu_port;
    return port < RECIRCULATE_QUEUE ? port : PORTS;
}

UNUSED static packet *packet_arrives(p4_switch *sw, u32 port, buffer *owner, const u8 *data,
                                     u32 length) {
    packet *p = packet_new(sw);
    if (!p) return NULL;
    packet_reset(p, owner, data, length);
    p->std.f_ingress_parser_input.f_ingress_port = program_port(sw, port);
    p->std.f_ingress_parser_input.f_packet_path = PATH_NORMAL;
    return p;
}

/* A packet that goes on in place of `p`, which is at its end. */
UNUSED static packet *packet_next(p4_switch *sw, packet *p, buffer *owner, const u8 *data,
                                  u32 length) {
    packet *next = packet_new(sw);
    if (!next) return NULL;
    packet_reset(next, owner, data, length);
    family_pass_on(p, next);
    return next;
}

/* A class of service that there is no queue for counts as 0. */
INLINE u8 queue_class(const p4_switch *sw, u64 class_of_service) {
    return class_of_service < sw->priorities ? (u8)class_of_service : 0;
}

/* Copies of a frame go to egress, with the metadata for clones of `p`. */
UNUSED static void send_clones(p4_switch *sw, packet *p, buffer *owner, const u8 *data, u32 length,
                               u64 number, u32 path) {
    const replication *session = number < CLONE_SESSIONS ? sw->sessions[number] : NULL;
    packet *copy = session ? packet_new(sw) : NULL;
    if (!copy) return;
    if (session->length && session->length < length) length = session->length;
    packet_reset(copy, owner, data, length);
    if (family_join(sw, p, copy)) {
        packet_free(sw, copy);
        return;
    }
    copy->std.f_egress_parser_input.f_packet_path = path;
    std_set_priority(copy, queue_class(sw, session->class_of_service));
    if (path == PATH_CLONE_I2E) copy->meta.f_clone_i2e = p->meta.f_clone_i2e;
    else copy->meta.f_clone_e2e = p->meta.f_clone_e2e;
    replicate(sw, copy, session);
}

/* --- ingress */

/* What the deparser makes of a packet; NULL without memory, or steps. */
UNUSED static buffer *ingress_frame(p4_switch *sw, packet *p) {
    output *out = sw->out;
    buffer *made = NULL;
    sw->out = &sw->scratch;
    sw->scratch.used = sw->emit_start = 0;
    sw->emitted = 0;
    memset(&p->meta.f_clone_i2e, 0, sizeof p->meta.f_clone_i2e);
    memset(&p->meta.f_resubmit, 0, sizeof p->meta.f_resubmit);
    memset(&p->meta.f_normal, 0, sizeof p->meta.f_normal);
    run_ingress_deparser(sw, p, sw->frame);
    if (!SPENT(p)) {
        if (!append_payload(sw, p))
            made = buffer_of(sw->scratch.bytes, (u32)sw->scratch.used);
        if (!made) sw->out_of_memory = 1;
    }
    sw->out = out;
    return made;
}

/* The packet goes to egress as the frame. */
UNUSED static void send_to_egress(p4_switch *sw, packet *p, buffer *b) {
    packet *sent = packet_next(sw, p, b, b->bytes, b->size);
    if (!sent) return;
    u32 group = (u32)p->std.f_ingress_output.f_multicast_group;
    sent->meta.f_normal = p->meta.f_normal;
    sent->std.f_egress_parser_input.f_packet_path
        = group ? PATH_NORMAL_MULTICAST : PATH_NORMAL_UNICAST;
    std_set_priority(sent, queue_class(sw, p->std.f_ingress_output.f_class_of_service));
    if (group) {
        replicate(sw, sent, group < GROUPS ? sw->groups[group] : NULL);
        return;
    }
    u32 port = switch_port(sw, (u32)p->std.f_ingress_output.f_egress_port);
    if (port < PORTS) enqueue(sw, sent, port);
    else packet_free(sw, sent);
}

/* Ingress and what follows it; the packet to resubmit, if it is. */
UNUSED static packet *ingress_once(p4_switch *sw, packet *p) {
    frame *f = sw->frame;
    std_t *s = &p->std;
    packet *again = NULL;
    if (spend(sw, p)) return packet_over(sw, p);
    memset(&p->headers.f_ingress, 0, sizeof p->headers.f_ingress);
    run_ingress_parser(sw, p, f);
    if (SPENT(p)) return packet_over(sw, p);
    if (UNLIKELY(p->parser_error)) sw->statistics.parser_errors++;
    s->f_ingress_input.f_ingress_port = s->f_ingress_parser_input.f_ingress_port;
    s->f_ingress_input.f_packet_path = s->f_ingress_parser_input.f_packet_path;
    s->f_ingress_input.f_ingress_timestamp = sw->now;
    s->f_ingress_input.f_parser_error = p->parser_error;
    s->f_ingress_output.f_drop = 1;
    run_ingress(sw, p, f);
    if (SPENT(p)) return packet_over(sw, p);
    if (s->f_ingress_output.f_drop && !s->f_ingress_output.f_clone) {
        packet_free(sw, p);
        return NULL;
    }
    buffer *made = ingress_frame(sw, p);
    if (SPENT(p)) return packet_over(sw, p);
    if (made) {
        if (s->f_ingress_output.f_clone)
            send_clones(sw, p, p->owner, p->data, p->length, s->f_ingress_output.f_clone_session_id,
                        PATH_CLONE_I2E);
        if (s->f_ingress_output.f_drop) {
            /* Only its clones go on. */
        } else if (s->f_ingress_output.f_resubmit) {
            again = packet_next(sw, p, p->owner, p->data, p->length);
            if (again) {
                again->meta.f_resubmit = p->meta.f_resubmit;
                again->std.f_ingress_parser_input = s->f_ingress_parser_input;
                again->std.f_ingress_parser_input.f_packet_path = PATH_RESUBMIT;
            }
        } else {
            made->users++;  /* While it may be dropped. */
            send_to_egress(sw, p, made);
            made->users--;
        }
        if (!made->users) free(made);
    }
    packet_free(sw, p);
    return again;
}

/* --- egress */

/* The frame, at the end of the output, starts over. */
UNUSED static void recirculate_packet(p4_switch *sw, packet *p, size_t start) {
    buffer *b = buffer_of(sw->out->bytes + start, (u32)(sw->out->used - start));
    packet *again = b ? packet_next(sw, p, b, b->bytes, b->size) : NULL;
    if (!b) sw->out_of_memory = 1;
    if (!again) { free(b); return; }
    again->meta.f_recirculate = p->meta.f_recirculate;
    again->std.f_ingress_parser_input.f_ingress_port = RECIRCULATE_PORT;
    again->std.f_ingress_parser_input.f_packet_path = PATH_RECIRCULATE;
    recirculates_later(sw, again);
}

/* The clones are the frame at the end of the output; they pass egress again. */
UNUSED static void clone_at_egress(p4_switch *sw, packet *p, size_t start) {
    buffer *b = buffer_of(sw->out->bytes + start, (u32)(sw->out->used - start));
    if (!b) { sw->out_of_memory = 1; return; }
    b->users++;
    send_clones(sw, p, b, b->bytes, b->size, p->std.f_egress_output.f_clone_session_id,
                PATH_CLONE_E2E);
    buffer_release(b);
}

UNUSED static void egress_packet(p4_switch *sw, packet *p, u32 port) {
    frame *f = sw->frame;
    output *o = sw->out;
    std_t *s = &p->std;
    if (spend(sw, p)) {
        packet_over(sw, p);
        return;
    }
    s->f_egress_parser_input.f_egress_port = program_port(sw, port);
    memset(&p->headers.f_egress, 0, sizeof p->headers.f_egress);
    run_egress_parser(sw, p, f);
    if (SPENT(p)) {
        packet_over(sw, p);
        return;
    }
    if (UNLIKELY(p->parser_error)) sw->statistics.parser_errors++;
    s->f_egress_input.f_egress_port = s->f_egress_parser_input.f_egress_port;
    s->f_egress_input.f_packet_path = s->f_egress_parser_input.f_packet_path;
    s->f_egress_input.f_egress_timestamp = sw->now;
    s->f_egress_input.f_parser_error = p->parser_error;
    s->f_egress_deparser_input.f_egress_port = s->f_egress_parser_input.f_egress_port;
    run_egress(sw, p, f);
    if (SPENT(p)) {
        packet_over(sw, p);
        return;
    }
    if (s->f_egress_output.f_drop && !s->f_egress_output.f_clone) {
        packet_free(sw, p);
        return;
    }
    memset(&p->meta.f_clone_e2e, 0, sizeof p->meta.f_clone_e2e);
    memset(&p->meta.f_recirculate, 0, sizeof p->meta.f_recirculate);
    size_t start = sw->emit_start = o->used;
    sw->emitted = 0;
    run_egress_deparser(sw, p, f);
    if (SPENT(p)) {
        o->used = start;
        packet_over(sw, p);
        return;
    }
    int sent = 0;
    if (UNLIKELY(append_payload(sw, p))) {
        sw->out_of_memory = 1;
    } else {
        if (s->f_egress_output.f_clone) clone_at_egress(sw, p, start);
        if (s->f_egress_output.f_drop) {
            /* Only its clones go on. */
        } else if (port == RECIRCULATE_QUEUE) {
            recirculate_packet(sw, p, start);
        } else {
            sent = !output_frame(o, start, (u16)port);
            if (UNLIKELY(!sent)) sw->out_of_memory = 1;
        }
    }
    if (!sent) o->used = start;
    packet_free(sw, p);
}

#endif
