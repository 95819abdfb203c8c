/* What a worker's half of the protocol offers (library.py): frames in, time, epochs. */

/* Find the arrays of a stream in a block of memory; returns its bytes. */
uint64_t stream_layout(struct stream *s, uint8_t *memory)
{
    uint8_t *at = memory;
    s->sent.size = 2 * (s->window > GAPS ? s->window : GAPS);
    PLACE(&at, s->slots, s->window);
    PLACE(&at, s->result_lanes, 4 * s->lanes * s->window);
    PLACE(&at, s->sent.fragments, s->sent.size);
    PLACE(&at, s->arrivals.asked, GAPS);
    PLACE(&at, s->answered, s->window);
    PLACE(&at, s->again, s->window);
    place_check_lanes(&s->checks, &at, s->checked ? s->lanes : 0);
    return (uint64_t)(at - memory);
}

/* -- frames */

/* Take in frames of any content, of `length` bytes and `stride` apart, as far as `out` has room for what may follow.
 * `internal`: they come from the server of the same host, and have lanes whatever their reduction. Returns how many
 * were taken in. */
uint32_t stream_receive(struct stream *s, const uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                        double now, int internal, struct output *out)
{
    uint32_t i = 0;
    for (; i < n && !s->failure && room_left(out) >= (uint64_t)s->most_output; i++) {
        const uint8_t *frame = frames + i * stride;
        if (length < STACK)
            s->counters->foreign++;
        else if (kind_of(frame) == REQUEST)
            answer_request(s, frame, length, out);
        else
            take_result(s, frame, length, now, internal, out);
    }
    if (!s->failure)
        settle(s, now, out);
    return s->failure ? n : i;
}

/* -- time */

/* Send the results again that a new server may lack. */
void stream_hand_over(struct stream *s, double now, struct output *out)
{
    double latest = s->handing_since + s->deadline;
    for (int64_t i = 0; i < s->window; i++) {
        const struct slot *slot = &s->slots[i];
        if (!slot->handing)
            continue;
        if (latest <= now) {
            fail(s, NO_HANDOVER, i, now);
            return;
        }
        uint8_t *frame = begin_frame(out, s->total, s->prefix_bytes);
        put32(frame + FRAGMENT, (uint32_t)slot->result);
        frame[EXPONENT] = (uint8_t)slot->result_code;
        frame[REDUCTION] = (uint8_t)slot->result_reduction;
        frame[FLAGS] = BYPASS;
        number_contribution(s, slot->result, frame);
        memcpy(frame + s->prefix_bytes, s->result_lanes + i * 4 * s->lanes, (size_t)(4 * s->lanes));
        finish_frame(out, frame, s->prefix_bytes, s->lanes);
        s->counters->handed_over++;
    }
    s->handing_due = earlier(now + s->handing_timeout, latest);
    s->handing_timeout = earlier(2 * s->handing_timeout, s->round_trip.most);
}

/* Do what is due: send again, or give up. */
void stream_tick(struct stream *s, double now, struct output *out)
{
    if (s->handing_due <= now)
        stream_hand_over(s, now, out);
    if (s->failure || !s->open)
        return;
    if (s->repair_due <= now)
        repair_losses(s, now, out);
    if (s->next_due <= now)
        expire_due(s, now, out);
    if (!s->failure && probe_due(s) <= now)
        send_probe(s, now, out);
}

/* Return the latest time at which `stream_tick` has something to do; infinity: no timer. */
double stream_deadline(const struct stream *s)
{
    double due = s->handing_due;
    if (!s->failure && s->open)
        due = earlier(earlier(due, probe_due(s)), earlier(s->next_due, s->repair_due));
    return due;
}

/* Return how many results may wait for one another, to be taken in together: a quarter of a full window, as the rest
 * must cover the round trip. Once the last fragment is sent, no result opens the window, and half may. */
int64_t stream_deferrable(const struct stream *s)
{
    return s->open / (s->open >= limit_of(&s->congestion) ? 4 : 2);
}

/* Let the deadlines of what is in flight, or handed over, count from now. */
void stream_postpone(struct stream *s, double now)
{
    for (int64_t i = 0; i < s->window; i++)
        if (s->slots[i].in_flight)
            s->slots[i].first_sent_at = now;
    s->handing_since = now;
}

/* Forget the back-off, and the probes sent. */
static void restart_timers(struct stream *s)
{
    restart_timeout(&s->round_trip);
    s->probes = 0;
}

/* Send what is in flight again at once, with fresh counts. Where others have results that are missing here they do not
 * send again; so the server is asked for the oldest ones. */
void stream_resume(struct stream *s, double now, struct output *out)
{
    restart_timers(s);
    send_all_again(s, now, out);
    int64_t count = sort_again(s, collect_in_flight(s));
    send_again(s, count < PROBE_FRAGMENTS ? count : PROBE_FRAGMENTS, now, 0, 1, out);
}

/* Send what idle slots may send: a tensor was submitted, or another tree has the result of its prologue. */
void stream_fill(struct stream *s, double now, struct output *out)
{
    if (!s->failure)
        fill_window(s, now, out);
}

/* -- epochs */

/* Set up a stream whose plan is set; `first`: its first fragment. */
void stream_start(struct stream *s, int64_t first)
{
    for (int64_t i = 0; i < s->window; i++) {
        struct slot *slot = &s->slots[i];
        memset(slot, 0, sizeof *slot);
        slot->fragment = first + ((i - first) & (s->window - 1));
        slot->due = slot->overtaken_at = INFINITY;
        slot->asked_at = -INFINITY;
        slot->result = EMPTY;
    }
    s->end = first;
    s->newest = s->newest_void = -1;
    s->shortest = s->next_due = s->repair_due = s->handing_due = INFINITY;
    s->answered_at = s->last_sent_at = -INFINITY;
    round_trip_start(&s->round_trip);
    congestion_start(&s->congestion);
    restart_arrivals(&s->arrivals);
}

/* Go on under a new epoch, whose plan is set: send again what is in flight, hand over the last results. */
void stream_adopt(struct stream *s, double now, struct output *out)
{
    s->sent.next = 0;
    restart_arrivals(&s->arrivals);
    restart_timers(s);
    congestion_move(&s->congestion);
    for (int64_t i = 0; i < s->window; i++)
        s->slots[i].bypass = 0;
    send_all_again(s, now, out);
    int64_t kept = 0;
    for (int64_t i = 0; s->hands_over && i < s->window; i++)
        kept += s->slots[i].result != EMPTY;
    if (!kept)
        return;
    for (int64_t i = 0; i < s->window; i++)
        s->slots[i].handing = s->slots[i].result != EMPTY;
    s->handing_since = now;
    s->handing_timeout = s->round_trip.timeout;
    stream_hand_over(s, now, out);
}

/* -- for the model checker */

/* Retransmit what is in flight in a slot, as a timeout does; `ask`: as a probe that asks the server. */
void stream_retry(struct stream *s, int64_t slot, int ask, double now, struct output *out)
{
    s->again[0] = slot;
    try_again(s, 1, now, 1, ask, out);
}
