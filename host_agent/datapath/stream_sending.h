/* Contributions sent, and sent again. */

/* Make the frame of what is in flight in a slot. Returns it unfinished: its link number may be missing. */
static uint8_t *make_contribution(struct stream *s, const struct slot *slot, const uint8_t *prefix, struct output *out)
{
    uint8_t *frame = begin_frame(out, prefix, s->prefix_bytes);
    put32(frame + FRAGMENT, wire_of(slot));
    frame[EXPONENT] = (uint8_t)slot->exponent;
    frame[REDUCTION] = (uint8_t)slot->reduction;
    frame[FLAGS] = (uint8_t)(slot->bypass ? BYPASS : s->flags);
    if (is_bare(frame) && !out->whole)
        memset(frame + s->prefix_bytes, 0, (size_t)(4 * s->lanes));
    else
        load(s, segment_of(s, slot->fragment), slot, frame + s->prefix_bytes);
    return frame;
}

/* Number a contribution whose flags are set, unless switches pass it on to a server that numbers mean nothing to. */
static void number_contribution(struct stream *s, int64_t wire, uint8_t *frame)
{
    if (s->direct || !(frame[FLAGS] & BYPASS))
        set_number(frame, next_number(&s->sent, wire), SEQUENCED);
}

/* Return when fragments that are sent now time out. */
static double due_after(const struct stream *s, double now)
{
    return now + earlier(s->round_trip.timeout, s->deadline);
}

static void note_sending(struct stream *s, struct slot *slot, double now)
{
    slot->order = s->next++;
    slot->sent_at = s->last_sent_at = now;
}

/* Send the next fragment of an idle slot, unless it waits for prologues. */
static void send_next(struct stream *s, struct slot *slot, double now, struct output *out)
{
    const struct segment *t = segment_of(s, slot->fragment);
    int64_t data = data_of(t, slot->fragment);
    if (t->prologues && data >= 0 && data < s->window) {
        if (*t->waiting)
            return;
        slot->code = t->codes[data / t->group];
    }
    slot->exponent = t->prologues ? t->exponents[slot->fragment - t->first] : t->remark;
    slot->reduction = data < 0 && !s->checked ? NONE : t->reduction;
    slot->in_flight = slot->tries = 1;
    slot->timeouts = slot->bypass = slot->quiet = 0;
    slot->first_sent_at = now;
    slot->due = due_after(s, now);
    uint8_t *frame = make_contribution(s, slot, s->prefix, out);
    number_contribution(s, wire_of(slot), frame);
    finish_frame(out, frame, s->prefix_bytes, s->lanes);
    note_sending(s, slot, now);
    s->next_due = earlier(s->next_due, slot->due);
    s->open++;
    s->counters->sent++;
}

/* For qsort. */
static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Send the next fragments of all idle slots, in order, as far as the congestion window allows. The oldest always go,
 * as many as may be in flight: all others' results may wait for them. */
static void fill_window(struct stream *s, double now, struct output *out)
{
    int64_t *idle = s->again; /* nothing is being sent again */
    int64_t count = 0, least = INT64_MAX;
    for (int64_t i = 0; i < s->window; i++) {
        const struct slot *slot = &s->slots[i];
        least = slot->fragment < least ? slot->fragment : least;
        if (!slot->in_flight && slot->fragment < s->end)
            idle[count++] = slot->fragment;
    }
    qsort(idle, (size_t)count, sizeof idle[0], by_number);
    if (is_limited(&s->congestion)) {
        int64_t limit = limit_of(&s->congestion), most = limit - s->open, oldest = 0;
        while (oldest < count && idle[oldest] < least + limit)
            oldest++;
        most = most > oldest ? most : oldest;
        count = count < most ? count : most;
    }
    for (int64_t i = 0; i < count; i++)
        send_next(s, slot_of(s, idle[i]), now, out);
}

/* Collect slots in flight to send again; `again` has them in order of their fragments. */
static int64_t sort_again(struct stream *s, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        s->again[i] = s->slots[s->again[i]].fragment;
    qsort(s->again, (size_t)count, sizeof s->again[0], by_number);
    for (int64_t i = 0; i < count; i++)
        s->again[i] &= s->window - 1;
    return count;
}

/* Retransmit slots' fragments. `quiet`: into a silence, so past empty queues; `ask`: this once around the switches,
 * to the server, which answers with the results of those that it has finished and keeps the others. */
static void send_again(struct stream *s, int64_t count, double now, int quiet, int ask, struct output *out)
{
    double due = due_after(s, now);
    sort_again(s, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t order = s->slots[s->again[i]].order;
        s->newest_void = order > s->newest_void ? order : s->newest_void;
    }
    for (int64_t i = 0; i < count; i++) {
        struct slot *slot = &s->slots[s->again[i]];
        uint8_t *frame = make_contribution(s, slot, s->prefix, out);
        if (ask)
            frame[FLAGS] |= BYPASS;
        number_contribution(s, wire_of(slot), frame);
        finish_frame(out, frame, s->prefix_bytes, s->lanes);
        note_sending(s, slot, now);
        slot->overtaken_at = INFINITY;
        slot->quiet = quiet;
        slot->due = earlier(due, slot->first_sent_at + s->deadline);
    }
    if (count)
        s->next_due = earlier(s->next_due, due);
    s->counters->retransmissions += count;
}

/* Retransmit, past the switches after too many failures: lost packets are no reason to go around a switch, a switch
 * that never sums is. */
static void try_again(struct stream *s, int64_t count, double now, int quiet, int ask, struct output *out)
{
    for (int64_t i = 0; i < count; i++) {
        struct slot *slot = &s->slots[s->again[i]];
        slot->tries++;
        if (slot->timeouts >= s->most_timeouts || slot->tries > s->most_tries) {
            slot->bypass = 1;
            s->counters->bypassed++;
        }
    }
    send_again(s, count, now, quiet, ask, out);
}

static int64_t collect_in_flight(struct stream *s)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->window; i++)
        if (s->slots[i].in_flight)
            s->again[count++] = i;
    return count;
}

/* Retransmit everything in flight, afresh. */
static void send_all_again(struct stream *s, double now, struct output *out)
{
    int64_t count = collect_in_flight(s);
    for (int64_t i = 0; i < count; i++) {
        struct slot *slot = &s->slots[s->again[i]];
        slot->tries = 2;
        slot->timeouts = 0;
        slot->first_sent_at = now;
    }
    send_again(s, count, now, 0, 0, out);
}
