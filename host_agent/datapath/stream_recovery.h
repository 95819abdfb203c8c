/* Loss detection, after RACK-TLP (RFC 8985): what is lost, probes, timeouts. */

/* Retransmit fragments that results of later transmissions show to be lost, and note when others will be. */
static void repair_losses(struct stream *s, double now, struct output *out)
{
    int64_t count = 0;
    s->repair_due = INFINITY;
    for (int64_t i = 0; i < s->window; i++) {
        struct slot *slot = &s->slots[i];
        int64_t behind = s->newest - slot->order;
        if (!slot->in_flight || behind <= 0)
            continue;
        double share = SPREAD * (double)((i + s->worker) % s->workers) / (double)s->workers;
        double patience = (behind >= REORDERING_DEGREE ? 0.25 : 1.0) * s->shortest;
        patience += (share + (s->repaired ? LINK_PATIENCE : 0)) * known_round_trip(&s->round_trip);
        slot->overtaken_at = earlier(slot->overtaken_at, now);
        double until = slot->overtaken_at + later(patience, LEAST_PATIENCE);
        if (until <= now)
            s->again[count++] = i;
        else
            s->repair_due = earlier(s->repair_due, until);
    }
    s->counters->fast_retransmissions += count;
    if (count)
        try_again(s, count, now, 0, 0, out);
}

/* Longest silence before a probe. A probe puts the timeout off, and must not come again and again before it. */
static double most_patience(const struct stream *s)
{
    return s->repaired ? 8 * s->round_trip.most : s->round_trip.most;
}

/* Return when the next probe is due, if anything is in flight. The first comes when a silence exceeds the longest
 * queue, the next ones wait for answers. Before any round trip is known, it goes by the initial timeout: the present
 * one may have backed off to minutes. */
static double probe_due(const struct stream *s)
{
    double shortest = s->shortest;
    if (shortest == INFINITY) {
        if (!s->repaired)
            return INFINITY;
        shortest = s->round_trip.initial / 2;
    }
    int64_t doublings = s->repaired ? s->probes - STEADY_PROBES : s->probes;
    double patience = later(s->min_probe, 2 * shortest);
    /* Queues were empty at the first probe, so its answer was due after a round trip. */
    if (s->probes && known_round_trip(&s->round_trip) > 0)
        patience = earlier(patience, later(PROBE_AGAIN, 2 * later(shortest, s->round_trip.smoothed)));
    patience = ldexp(patience, doublings > 0 ? (int)doublings : 0);
    return later(*s->progress, s->last_sent_at) + earlier(patience, most_patience(s));
}

static int asks_server(const struct stream *s)
{
    return s->probes > 0 && s->probes % ASK_EVERY == 0;
}

static void send_probe(struct stream *s, double now, struct output *out)
{
    int64_t count = collect_in_flight(s);
    s->probes = s->probes < 30 ? s->probes + 1 : 30;
    /* The newest go to the front. */
    for (int64_t i = 0; count > PROBE_FRAGMENTS && i < PROBE_FRAGMENTS; i++)
        for (int64_t j = i + 1; j < count; j++)
            if (s->slots[s->again[j]].order > s->slots[s->again[i]].order) {
                int64_t newer = s->again[j];
                s->again[j] = s->again[i];
                s->again[i] = newer;
            }
    count = count < PROBE_FRAGMENTS ? count : PROBE_FRAGMENTS;
    s->counters->probes += count;
    try_again(s, count, now, 1, asks_server(s), out);
}

static void fail(struct stream *s, enum failure why, int64_t slot, double now)
{
    s->failure = why;
    s->failed_slot = slot;
    s->failed_at = now;
    s->news++;
    s->next_due = s->handing_due = INFINITY;
    for (int64_t i = 0; i < s->window; i++)
        s->slots[i].due = INFINITY;
}

/* Retransmit what has timed out, oldest first. `again` holds those slots. */
static void expire(struct stream *s, int64_t count, double now, struct output *out)
{
    int64_t oldest = s->again[0];
    double last_sent = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        const struct slot *slot = &s->slots[s->again[i]];
        if (slot->first_sent_at < s->slots[oldest].first_sent_at)
            oldest = s->again[i];
        last_sent = later(last_sent, slot->sent_at);
    }
    if (s->slots[oldest].first_sent_at + s->deadline <= now) {
        fail(s, NO_RESULT, oldest, now);
        return;
    }
    int ask = 0;
    /* A round takes the place of a probe where none is due before the first round trip. */
    if (round_trip_back_off(&s->round_trip, now, last_sent) && probe_due(s) == INFINITY) {
        s->probes++;
        ask = asks_server(s);
    }
    s->counters->timeouts += count;
    for (int64_t i = 0; i < count; i++)
        s->slots[s->again[i]].timeouts++;
    sort_again(s, count);
    int64_t first = !ask ? 0 : count < PROBE_FRAGMENTS ? count : PROBE_FRAGMENTS, rest = count - first;
    int64_t *others = s->answered; /* no results are being taken in */
    memcpy(others, s->again + first, (size_t)rest * sizeof others[0]);
    if (first)
        try_again(s, first, now, 1, 1, out);
    memcpy(s->again, others, (size_t)rest * sizeof others[0]);
    if (rest)
        try_again(s, rest, now, 1, 0, out);
}

/* Whether probes are being sent, so that a timeout adds nothing. Not while other trees make progress: there is no
 * silence then, and so no probe. */
static int probes_steadily(const struct stream *s)
{
    return s->repaired && s->probes < STEADY_PROBES && *s->progress <= later(s->answered_at, s->last_sent_at);
}

/* Do what timeouts that have passed ask for. While results arrive, fragments that are not overtaken are queued. */
static void expire_due(struct stream *s, double now, struct output *out)
{
    double until = s->answered_at + s->round_trip.timeout;
    int64_t count = 0;
    if (probes_steadily(s))
        until = later(until, now + s->round_trip.timeout);
    for (int64_t i = 0; i < s->window; i++) {
        struct slot *slot = &s->slots[i];
        double latest = slot->first_sent_at + s->deadline;
        if (slot->due > now)
            continue;
        if (until > now)
            slot->due = earlier(until, latest);
        if (until <= now || latest <= now)
            s->again[count++] = i;
    }
    if (count)
        expire(s, count, now, out);
    s->next_due = INFINITY;
    for (int64_t i = 0; i < s->window; i++)
        s->next_due = earlier(s->next_due, s->slots[i].due);
}
