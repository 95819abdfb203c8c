/* Frames that a server sends. */

/* Set the IP ToS byte of a frame, the second of its header. */
static void put_tos(uint8_t *frame, int64_t tos)
{
    put_header16(frame, IPV4, (uint32_t)frame[IPV4] << 8 | (uint32_t)tos);
}

/* Compute the IPv4 checksum of a frame whatever it was. */
static void put_checksum(uint8_t *frame)
{
    uint32_t sum = 0;
    put16(frame + CHECKSUM, 0);
    for (int at = IPV4; at < IPV4 + IPV4_BYTES; at += 2)
        sum += big16(frame + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    put16(frame + CHECKSUM, ~((sum & 0xFFFF) + (sum >> 16)));
}

/* Send the last finished fragment of a slot; with `flags` other than 0, under its number. */
static void send_finished(struct server *s, struct output *out, const struct server_form *form, int64_t slot,
                          int64_t tos, uint8_t flags)
{
    struct finished *f = &s->finished[slot];
    uint8_t *frame = begin_frame(out, form->prefix, form->bytes);
    put_tos(frame, tos);
    put32(frame + FRAGMENT, (uint32_t)f->fragment);
    frame[EXPONENT] = f->code;
    frame[FLAGS] = f->flags;
    frame[REDUCTION] = f->reduction;
    if (flags) {
        if (f->number == EMPTY) /* finished in an earlier epoch */
            f->number = next_number(&s->sent, f->fragment);
        set_number(frame, f->number, flags);
    }
    memcpy(frame + form->bytes, finished_lanes(s, slot), lane_bytes(s));
    finish_frame(out, frame, form->bytes, s->lanes);
}

/* Retransmit a finished fragment, urgently; switches that keep replicated ones drop them. */
static void repeat_result(struct server *s, struct output *out, const struct server_form *form, int64_t slot)
{
    send_finished(s, out, form, slot, s->tos | URGENT, SEQUENCED | REPAIR);
    s->counters.repaired++;
}

/* Retransmit the result that was sent under a number, if the history has it. */
static void repair_number(struct server *s, struct output *out, const struct server_form *form, int64_t number)
{
    int64_t fragment = find_number(&s->sent, number), slot = fragment & (s->window - 1);
    if (fragment != UNKNOWN && s->finished[slot].fragment == fragment)
        repeat_result(s, out, form, slot);
}

/* Answer a request for a finished fragment, under this server's epoch and paths. */
static void answer_worker(struct server *s, struct output *out, const struct contribution *c)
{
    if (c->worker >= s->workers) {
        s->counters.refused++;
        return;
    }
    send_finished(s, out, &s->unicast[c->worker], c->slot, s->tos, s->replicates ? 0 : SEQUENCED);
    s->counters.answered++;
}

/* Request a number from the neighbour that a frame came from: a copy of the frame, sent back. It has lanes, whatever
 * the frame has. */
static void request_sum(struct server *s, struct output *out, const struct contribution *c, int64_t number)
{
    uint8_t *frame = begin_frame(out, c->frame, s->lanes_at);
    memcpy(frame, c->frame + MAC_BYTES, MAC_BYTES);
    memcpy(frame + MAC_BYTES, c->frame, MAC_BYTES);
    memcpy(frame + SOURCE_IP, c->frame + DESTINATION_IP, IP_BYTES);
    memcpy(frame + DESTINATION_IP, c->frame + SOURCE_IP, IP_BYTES);
    frame[KIND] = (uint8_t)((frame[KIND] & 0xF0) | REQUEST);
    frame[FLAGS] = 0;
    frame[REDUCTION] = SUM;
    set_number(frame, number, SEQUENCED);
    if (c->bare)
        resize(frame, (int64_t)lane_bytes(s));
    frame[TOS] = (uint8_t)(s->tos | URGENT);
    put_checksum(frame);
    memcpy(frame + s->lanes_at, c->lanes, lane_bytes(s));
    finish_frame(out, frame, s->lanes_at, s->lanes);
    s->counters.requests++;
}

/* Ask a worker for the contribution that it sent under a number, past all switches. */
static void request_contribution(struct server *s, struct output *out, int64_t worker, int64_t number)
{
    const struct server_form *form = &s->unicast[worker];
    uint8_t *frame = begin_frame(out, form->prefix, form->bytes);
    put_tos(frame, s->tos | URGENT);
    frame[FLAGS] = STALE | BYPASS;
    frame[REDUCTION] = NONE;
    set_number(frame, number, SEQUENCED);
    memset(frame + form->bytes, 0, lane_bytes(s));
    finish_frame(out, frame, form->bytes, s->lanes);
    s->counters.requests++;
}
