/* Frames received: results, requests of neighbours and of the server. */

/* Note that the new server knows the last result of a slot, or a newer one. */
static void note_handed(struct stream *s, struct slot *slot)
{
    slot->handing = 0;
    for (int64_t i = 0; i < s->window; i++)
        if (s->slots[i].handing)
            return;
    s->handing_due = INFINITY;
}

/* Put a result in place, whose slot becomes idle; `settle` does the rest for all that came together. */
static void accept_result(struct stream *s, struct slot *slot, const uint8_t *frame, const uint8_t *lanes)
{
    struct segment *t = segment_of(s, slot->fragment);
    int64_t data = data_of(t, slot->fragment);
    uint8_t code = frame[EXPONENT];
    if (data >= 0) {
        store(s, t, data, lanes, (uint8_t)slot->code);
    } else {
        t->codes[data + t->prologues] = code;
        if (!--t->unanswered) {
            /* Data of the first window waits for this. */
            s->opened = 1;
            s->news += !--*t->waiting && t->trees > 1;
        }
    }
    if (!t->prologues && code > t->greatest)
        t->greatest = code;
    slot->result = wire_of(slot);
    slot->code = slot->result_code = code;
    slot->result_reduction = frame[REDUCTION];
    memcpy(s->result_lanes + (slot - s->slots) * 4 * s->lanes, lanes, (size_t)(4 * s->lanes));
    slot->asked_at = -INFINITY;
    slot->in_flight = 0;
    slot->fragment += s->window;
    if (s->handing_due != INFINITY)
        note_handed(s, slot);
    s->marked |= (frame[FLAGS] & ECN) != 0;
    s->answered[s->taken++] = slot - s->slots;
    s->news += !--t->open;
    while (s->first_segment < s->next_segment && !segment_at(s, s->first_segment)->open)
        s->first_segment++;
}

/* Draw conclusions from the results that came together, and send what they make room for. */
static void settle(struct stream *s, double now, struct output *out)
{
    if (!s->taken)
        return;
    double oldest = INFINITY, latest = -INFINITY, latest_once = -INFINITY;
    int64_t newest_once = UNKNOWN;
    int was_limited = is_limited(&s->congestion);
    s->answered_at = *s->progress = now;
    s->probes = 0;
    for (int64_t i = 0; i < s->taken; i++) {
        struct slot *slot = &s->slots[s->answered[i]];
        if (slot->tries != 1)
            continue;
        newest_once = slot->order > newest_once ? slot->order : newest_once;
        latest_once = later(latest_once, slot->sent_at);
        /* Round trips of packets without lanes are too short to expect of others. */
        if (slot->reduction == NONE)
            continue;
        oldest = earlier(oldest, slot->sent_at);
        latest = later(latest, slot->sent_at);
    }
    s->shortest = earlier(s->shortest, now - latest);
    for (int64_t i = 0; i < s->taken; i++) {
        struct slot *slot = &s->slots[s->answered[i]];
        double known = known_round_trip(&s->round_trip), plausible = slot->quiet ? s->shortest : known ? known : INFINITY;
        int measured = slot->tries == 1 && slot->reduction != NONE;
        int64_t *evidence = measured || now - slot->sent_at >= plausible ? &s->newest : &s->newest_void;
        *evidence = slot->order > *evidence ? slot->order : *evidence;
        slot->overtaken_at = slot->due = INFINITY;
    }
    if (oldest != INFINITY)
        round_trip_sample(&s->round_trip, now - oldest);
    /* Sendings after the newest one answered are all in flight, unless some were void. */
    int in_order = s->open - s->taken == s->next - 1 - s->newest && s->newest_void <= s->newest;
    if (!in_order)
        congestion_overtaken(&s->congestion, s->next);
    if (newest_once != UNKNOWN)
        congestion_answered(&s->congestion, newest_once, s->next, s->open, now - latest_once, (int)s->marked);
    s->open -= s->taken;
    s->counters->accepted += s->taken;
    if (!in_order)
        repair_losses(s, now, out);
    if (s->opened || was_limited || is_limited(&s->congestion)) {
        fill_window(s, now, out);
    } else {
        for (int64_t i = 0; i < s->taken; i++) {
            struct slot *slot = &s->slots[s->answered[i]];
            if (slot->fragment < s->end)
                send_next(s, slot, now, out);
        }
    }
    s->taken = s->marked = s->opened = 0;
}

/* Ask the neighbour for results that were lost on the way from it. */
static void ask_for_gaps(struct stream *s, const uint8_t *frame, struct output *out)
{
    int64_t missing[GAPS];
    int count;
    if (!s->end_to_end && !(frame[FLAGS] & SEQUENCED))
        return;
    take_number(&s->arrivals, big16(frame + SEQUENCE), (frame[FLAGS] & REPAIR) != 0,
                s->end_to_end ? s->window : 0, missing, &count);
    for (int i = 0; i < count; i++) {
        uint8_t *request = begin_frame(out, s->request, s->request_bytes);
        memset(request + s->request_bytes, 0, (size_t)(4 * s->lanes));
        request[FLAGS] = (uint8_t)s->request_flags;
        set_number(request, missing[i], SEQUENCED);
        finish_frame(out, request, s->request_bytes, s->lanes);
    }
    s->counters->requests += count;
}

/* Send a fragment around the switches, from now on, if it is the server that asks. */
static void answer_question(struct stream *s, struct slot *slot, uint32_t wire, const int32_t *values, double now,
                            struct output *out)
{
    if (!slot->in_flight || wire_of(slot) != wire) {
        s->counters->stale_results++;
    } else if (!check_question(&s->checks, values, wire)) {
        s->counters->refused++;
    } else {
        s->counters->asked++;
        slot->bypass = 1;
        s->again[0] = slot - s->slots;
        try_again(s, 1, now, 0, 0, out);
    }
}

/* Whether a frame has values that may wrap around: of 8 bits. */
static int wraps(const uint8_t *frame)
{
    return (frame[REDUCTION] & 0x0F) == WIDTH_8;
}

/* Send again, under its number, what a neighbour asks for: a fragment lost on the way to it. */
static void repair_number_of(struct stream *s, int64_t number, struct output *out)
{
    int64_t wire = find_number(&s->sent, number);
    const struct slot *slot = slot_of(s, wire);
    if (wire == UNKNOWN || !slot->in_flight || wire_of(slot) != wire || (slot->bypass && !s->direct))
        return;
    uint8_t *repair = make_contribution(s, slot, s->urgent, out);
    set_number(repair, number, SEQUENCED | REPAIR);
    finish_frame(out, repair, s->prefix_bytes, s->lanes);
    s->counters->repaired++;
    s->counters->retransmissions++;
}

/* Whether a result of another epoch, flags or weight than usual is one to look at. `values`: with check lanes. */
static int is_usable(struct stream *s, struct slot *slot, const uint8_t *frame, const int32_t *values, double now,
                     struct output *out)
{
    uint32_t wire = big32(frame + FRAGMENT);
    uint8_t flags = frame[FLAGS];
    int useless;
    if (is_newer(s->epoch, big16(frame + EPOCH), 16)) {
        s->counters->stale_results++;
    } else if (big16(frame + WEIGHT) != s->workers) {
        s->counters->refused++;
    } else if ((flags & (STALE | BYPASS)) == (STALE | BYPASS)) {
        if (s->direct && big16(frame + EPOCH) == s->epoch)
            repair_number_of(s, big16(frame + SEQUENCE), out);
        else
            s->counters->refused++;
    } else if (s->checked && flags & BYPASS) {
        answer_question(s, slot, wire, values, now, out);
    } else if (flags & OVERFLOW && !wraps(frame)
               && (!s->checked || check_result(&s->checks, values, wire, frame[EXPONENT], 1, &useless))) {
        s->counters->refused++;
        if (slot->in_flight && wire_of(slot) == wire)
            fail(s, LANE_OVERFLOW, slot - s->slots, now);
    } else {
        return 1;
    }
    return 0;
}

/* Whether check lanes show that a result of a fragment in flight is the server's, and can be right. The server is
 * asked for others, once a round trip for each. An exponent that was altered on the way up, which all have by now,
 * ends the job: it is below the one announced here, or nobody needs it. */
static int is_genuine(struct stream *s, struct slot *slot, const uint8_t *frame, const int32_t *values, double now,
                      struct output *out)
{
    int useless;
    if (!check_result(&s->checks, values, wire_of(slot), frame[EXPONENT], 0, &useless)) {
        s->counters->corrupt++;
        if (slot->asked_at + known_round_trip(&s->round_trip) <= now) {
            slot->asked_at = now;
            s->again[0] = slot - s->slots;
            try_again(s, 1, now, 0, 1, out);
        }
        return 0;
    }
    if (useless || slot->exponent > frame[EXPONENT]) {
        fail(s, ALTERED_EXPONENT, slot - s->slots, now);
        return 0;
    }
    return 1;
}

/* Take in a result, if it is one. */
static void take_result(struct stream *s, const uint8_t *frame, uint32_t length, double now, int internal,
                        struct output *out)
{
    int bare = !internal && is_bare(frame);
    enum match found = FOREIGN;
    if (length == (uint64_t)(STACK + (bare ? 0 : 4 * s->lanes)))
        found = match(&s->results, frame, bare);
    if (found == FOREIGN) {
        s->counters->foreign++;
        return;
    }
    uint8_t zeros[4 * s->lanes];
    const uint8_t *lanes = bare ? memset(zeros, 0, sizeof zeros) : frame + STACK;
    int32_t values[s->lanes];
    if (s->checked)
        read_lanes(values, lanes, s->lanes);
    uint32_t wire = big32(frame + FRAGMENT);
    struct slot *slot = slot_of(s, wire);
    if (found == PLAIN && (!(frame[FLAGS] & OVERFLOW) || wraps(frame)))
        ask_for_gaps(s, frame, out);
    else if (!is_usable(s, slot, frame, values, now, out))
        return;
    s->counters->ecn += (frame[FLAGS] & ECN) != 0;
    if (!slot->in_flight || wire_of(slot) != wire || slot->reduction != frame[REDUCTION]) {
        /* A late copy, or the answer to a hand-over. */
        s->counters->stale_results++;
        if (s->handing_due != INFINITY && slot->result == wire)
            note_handed(s, slot);
        return;
    }
    if (!s->checked || is_genuine(s, slot, frame, values, now, out))
        accept_result(s, slot, frame, lanes);
}

/* Answer a switch's request. */
static void answer_request(struct stream *s, const uint8_t *frame, uint32_t length, struct output *out)
{
    int bare = is_bare(frame);
    if (length != (uint64_t)(s->prefix_bytes + (bare ? 0 : 4 * s->lanes)) || match(&s->requests, frame, bare) != PLAIN) {
        s->counters->foreign++;
        return;
    }
    repair_number_of(s, big16(frame + SEQUENCE), out);
}
