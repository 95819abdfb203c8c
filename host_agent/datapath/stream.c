/* A worker's half of the protocol on one tree: what is in flight, when it is sent again, and the results. The rules
 * are in docs/protocol.md, A worker; stream.py sets a stream up. Times in seconds. library.py defines STEADY_PROBES. */

enum {
    /* Results of later transmissions from which on a missing result is considered lost sooner. */
    REORDERING_DEGREE = 3,
    /* Fragments in a probe, those sent last. */
    PROBE_FRAGMENTS = 4,
    /* Of consecutive probes, one in this many asks the server, past the switches. If all other workers have the
     * result, or bypass, and a switch has lost its slots, contributions would wait there for others that are never
     * sent. */
    ASK_EVERY = 3,
};

/* Least time to wait for an overtaken fragment. */
#define LEAST_PATIENCE 1e-4
/* Fraction of a round trip over which the workers' retransmissions of one fragment are spread. */
#define SPREAD 0.25
/* Smoothed round trips to wait for an overtaken fragment where losses are repaired where they occur: by then requests
 * between neighbours have failed. */
#define LINK_PATIENCE 2.0
/* Least time from which the intervals of further probes grow, unless the first came sooner: a process may be off the
 * processor for tenths of a second. */
#define PROBE_AGAIN 0.25

/* Why a stream has failed. */
enum failure { NO_FAILURE, LANE_OVERFLOW, ALTERED_EXPONENT, NO_RESULT, NO_HANDOVER };

/* A worker's counters, in packets, of all its streams. */
struct worker_counters {
    /* Fragments sent for the first time. */
    int64_t sent;
    /* Retransmitted fragments, including bypassed ones and those after a new epoch. */
    int64_t retransmissions;
    /* Retransmissions triggered by results of later transmissions. */
    int64_t fast_retransmissions;
    /* Retransmissions requested by a neighbour: lost on the link to it. */
    int64_t repaired;
    /* Results requested again: lost on the link from the neighbour. */
    int64_t requests;
    /* Retransmissions as probes. */
    int64_t probes;
    /* Fragments whose timeout passed. */
    int64_t timeouts;
    /* Retransmissions that no switch may aggregate. */
    int64_t bypassed;
    /* Results handed over to a server that may not have them. */
    int64_t handed_over;
    /* Results of fragments in flight. */
    int64_t accepted;
    /* Results of fragments that are not in flight, or of an older epoch. */
    int64_t stale_results;
    /* Results that overflowed, or whose weight is not the number of workers. */
    int64_t refused;
    /* Results of fragments in flight that check lanes show to be altered or forged. */
    int64_t corrupt;
    /* Fragments sent around the switches because the server asked. */
    int64_t asked;
    /* Frames that are not results of this job. */
    int64_t foreign;
    /* Results flagged with congestion. */
    int64_t ecn;
};

/* A tensor's part on this tree, as fragments `first` to `end` of the stream: the first ones are its `prologues` if it is
 * of floats. Values are read until their result is here, so the result may take their place. */
struct segment {
    const void *source;
    void *result;
    /* Exponent bytes to send with each fragment of floats (docs/protocol.md, Exponents), and those that the prologues
     * have brought; how many have not. Each is for `group` data fragments of the first window. */
    const uint8_t *exponents;
    int64_t *codes;
    int64_t prologues, unanswered, group;
    /* The call's trees, and those some of whose prologues have no result: the first windows of all wait for these,
     * since whichever tree began alone would keep the links from the host to itself for a window. */
    int64_t trees, *waiting;
    /* Type of the elements (elements.py), and width of values in packets: a lane has 2^width of them. */
    int64_t type, width;
    int64_t first, end, elements, reduction;
    /* Exponent byte to send with each fragment of integers; and the greatest one of all workers. */
    int64_t remark, greatest;
    /* Fragments without a result. */
    int64_t open;
};

struct slot {
    /* The fragment in flight, or the next one. */
    int64_t fragment, in_flight;
    /* Of what is in flight: number and time of the last sending, and whether that went into a silence; the first
     * time, or when its deadline was last postponed; its timeout. */
    int64_t order, quiet;
    double sent_at, first_sent_at, due;
    /* When the result of a later sending had come first. */
    double overtaken_at;
    /* How often it was sent, how often it timed out, and whether it bypasses the switches. */
    int64_t tries, timeouts, bypass;
    /* Its reduction and exponent byte in frames; and the exponent byte that scales it. */
    int64_t reduction, exponent, code;
    /* When the server was last asked because of an invalid result. */
    double asked_at;
    /* The last result: number on the wire, or EMPTY; and whether a new server may not have it. */
    int64_t result, result_code, result_reduction, handing;
};

struct calls;

struct stream {
    struct flow flow;
    struct slot *slots;
    uint8_t *result_lanes;
    struct sent_log sent;
    struct arrivals arrivals;
    /* Slots with results that are being taken in, and slots to send again. */
    int64_t *answered, *again;
    struct worker_counters *counters;
    /* Time of the worker's last result on any tree: its trees share a queue. */
    double *progress;
    /* Calls of a process that come from its socket (calls.c), or NULL. */
    struct calls *calls;
    /* Tensors from the first unfinished one on, by number modulo `segment_room`, which Python makes larger. */
    struct segment *segments;
    int64_t segment_room, first_segment, next_segment;

    /* The plan: frames to send, those that come, and the job's numbers. `urgent` are the same with the ToS bit. */
    const uint8_t *prefix, *urgent, *total, *request;
    int64_t prefix_bytes, request_bytes;
    struct matcher results;
    struct matcher requests;
    struct factors factors;
    /* Whether fragments have check lanes; `values` are the others. */
    int64_t checked;
    struct check_lanes checks;
    int64_t window, lanes, values, worker, workers, epoch;
    /* Flags of all contributions; whether no switch sums these, so that their numbers are for the server; flags of
     * requests; whether results are numbered by the server; whether losses are repaired where they occur; whether a
     * new epoch's server may be a new one. */
    int64_t flags, direct, request_flags, end_to_end, repaired, hands_over;
    /* Timeouts of a fragment after which it bypasses the switches, and retransmissions. */
    int64_t most_timeouts, most_tries;
    double deadline, min_probe;

    /* The next fragment of a new tensor; fragments in flight; sendings so far; the newest sending known to be
     * answered; and the newest that proves nothing: sent once more since, or answered by nobody knows which. */
    int64_t end, open, next, newest, newest_void, probes;
    struct round_trip round_trip;
    struct congestion congestion;
    /* The shortest round trip; times of the last result and sending, and of timers. */
    double shortest, answered_at, last_sent_at, next_due, repair_due;
    double handing_due, handing_since, handing_timeout;
    /* Frames that one call of a function may make. */
    int64_t most_output;
    /* For Python: why the stream has failed, at which slot and when; and whether a tensor is finished, the last
     * prologue of a call has its result, or the stream has failed. */
    int64_t failure, failed_slot;
    double failed_at;
    int64_t news;
    /* Of the results being taken in: how many; whether one met a long queue; whether idle slots may send now. */
    int64_t taken, marked, opened;
};

static inline uint32_t wire_of(const struct slot *slot)
{
    return (uint32_t)slot->fragment;
}

static inline struct slot *slot_of(const struct stream *s, int64_t fragment)
{
    return &s->slots[fragment & (s->window - 1)];
}

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

/* -- tensors */

static struct segment *segment_at(const struct stream *s, int64_t number)
{
    return &s->segments[number % s->segment_room];
}

/* The tensor that a fragment is of. */
static struct segment *segment_of(const struct stream *s, int64_t fragment)
{
    int64_t low = s->first_segment, high = s->next_segment;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (segment_at(s, middle)->first <= fragment)
            low = middle;
        else
            high = middle;
    }
    return segment_at(s, low);
}

static int64_t data_of(const struct segment *t, int64_t fragment)
{
    return fragment - t->first - t->prologues;
}

/* Elements in fragments before data fragment `data`. */
static int64_t elements_before(const struct stream *s, const struct segment *t, int64_t data)
{
    return data * (s->values << t->width);
}

static int64_t elements_in(const struct stream *s, const struct segment *t, int64_t data)
{
    int64_t left = t->elements - elements_before(s, t, data), most = s->values << t->width;
    return left < most ? left : most;
}

static int64_t bytes_before(const struct stream *s, const struct segment *t, int64_t data)
{
    return elements_before(s, t, data) * element_bytes(t->type);
}

/* Write the lanes of a contribution. */
static void load(struct stream *s, const struct segment *t, const struct slot *slot, uint8_t *lanes)
{
    int64_t data = data_of(t, slot->fragment), n = data < 0 ? 0 : elements_in(s, t, data), filled = 4 * n >> t->width;
    const uint8_t *from = data < 0 ? NULL : (const uint8_t *)t->source + bytes_before(s, t, data);
    uint8_t code = (uint8_t)slot->code;
    int32_t made[s->lanes];
    const int32_t *values = made;
    if (t->width) {
        if (n)
            write_narrow(&s->factors, t->type, from, n, code, lanes);
        memset(lanes + filled, 0, (size_t)(4 * s->lanes - filled));
        return;
    }
    if (n && t->type == OF_INT32 && !s->checked)
        values = (const int32_t *)from;
    else if (n)
        make_wide(&s->factors, t->type, from, n, code, made);
    if (!s->checked) {
        write_lanes(lanes, values, n);
        memset(lanes + filled, 0, (size_t)(4 * s->lanes - filled));
        return;
    }
    memset(made + n, 0, (size_t)(4 * (s->lanes - n)));
    int needed = 1;
    if (t->prologues && data >= 0) {
        /* The byte that this fragment's own values need went along a window earlier. */
        int64_t at = data < s->window ? data / t->group : data - s->window + t->prologues;
        needed = t->exponents[at] == code;
    }
    check_protect(&s->checks, made, wire_of(slot), s->worker, needed);
    write_lanes(lanes, made, s->lanes);
}

/* Put a result in place. */
static void store(const struct stream *s, const struct segment *t, int64_t data, const uint8_t *lanes, uint8_t code)
{
    int64_t n = elements_in(s, t, data);
    uint8_t *to = (uint8_t *)t->result + bytes_before(s, t, data);
    int32_t sums[s->lanes];
    if (t->width) {
        read_narrow(&s->factors, t->type, lanes, n, code, to);
    } else if (t->type == OF_INT32) {
        read_lanes((int32_t *)to, lanes, n);
    } else {
        read_lanes(sums, lanes, n);
        take_wide(&s->factors, t->type, sums, n, code, to);
    }
}

/* -- sending */

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

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Send the next fragments of all idle slots, in order, as far as the congestion window allows. The oldest always go,
 * as many as may be in flight: all others' results may wait for them. */
static void fill_window(struct stream *s, double now, struct output *out)
{
    int64_t idle[s->window], count = 0, least = INT64_MAX;
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

/* -- loss detection: after RACK-TLP (RFC 8985) */

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
    int64_t others[s->window];
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

/* -- results */

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
static void hand_over(struct stream *s, double now, struct output *out)
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
        hand_over(s, now, out);
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
    hand_over(s, now, out);
}

/* -- for the model checker */

/* Retransmit what is in flight in a slot, as a timeout does; `ask`: as a probe that asks the server. */
void stream_retry(struct stream *s, int64_t slot, int ask, double now, struct output *out)
{
    s->again[0] = slot;
    try_again(s, 1, now, 1, ask, out);
}

void stream_hand_over(struct stream *s, double now, struct output *out)
{
    hand_over(s, now, out);
}
