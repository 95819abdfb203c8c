/* What a worker's stream does with ordinary results and fragments, in one pass: see ordinary.py, and
 * stream.py for all else. Frames are looked at before anything changes, so whatever is not ordinary is
 * left whole. ordinary.py defines LEAST_WINDOW and NO_QUEUE. */

struct calls;

struct stream {
    struct flow flow;
    /* Calls to take from a process (sure_calls.c), or NULL. */
    struct calls *calls;
    /* The stream's arrays, by slot. */
    int64_t *fragment, *wire, *result_wire, *order, *last;
    double *due, *first_sent_at, *sent_at, *overtaken_at;
    int32_t *tries, *timeouts;
    uint8_t *code, *quiet, *result_code, *result_reduction, *result_lanes, *frames;
    /* Log of frames that its neighbour may request, by number. */
    int64_t *log;
    /* Its frames: plain ones, and the constant part of all it sends. */
    const uint8_t *plain, *expected, *prefix;
    /* By exponent byte: factors to integers and back, 0 for those that are converted in double; and the
     * value of an integer 1. */
    const float *up, *down;
    const double *step;
    int64_t window, lanes, log_size, prefix_bytes, lanes_at, flags, numbered, end_to_end, limit, bits;
    /* Bounds of timeouts and probes, and the time of the worker's last result on any tree. */
    double least_timeout, most_timeout, deadline, min_probe, max_probe;
    double *progress;
    /* The tensor whose results come; how many of its fragments have none yet; and the greatest
     * exponent byte of its results, if `remarked`. */
    const void *source;
    void *result;
    const uint8_t *announced;
    int64_t first, prologue, end, elements, reduction, byte, left, remarked, remark;
    /* The exponent byte of its first window, UNKNOWN while it may not be sent; whether no other tree's
     * prologue is awaited; and the result of the prologue, if it came since `load`, else UNKNOWN. */
    int64_t first_code, alone, begun;
    /* State of the stream; smoothed < 0: no round trip is known. */
    int64_t end_of_stream, arrived, log_next, next, newest, newest_void, open, probes;
    double smoothed, answered_at, shortest, last_sent_at, variation, timeout, next_due, repair_due;
    /* Its congestion window (congestion.py), and whether its path has one. */
    double size, most, shortest_round, path_round_trip, path_step;
    int64_t reacted, round, congestible;
    /* Whether idle slots have fragments to send that are not this tensor's. */
    int64_t refill;
    /* Packets since `load`. */
    int64_t sent, accepted, ecn;
    /* What `look` finds. */
    int64_t sequenced, marked, last_answered;
    double oldest, latest;
};

static int64_t numbers_in(const struct stream *s, int64_t data)
{
    int64_t left = s->elements - data * s->lanes;
    return left < s->lanes ? left : s->lanes;
}

/* Whether n frames, `stride` bytes apart, are ordinary results; changes nothing but `last`. */
int ordinary_look(struct stream *s, const uint8_t *frames, uint32_t n, uint64_t stride)
{
    int64_t newest = s->newest;
    s->sequenced = s->end_to_end || frames[FLAGS] & SEQUENCED;
    s->marked = 0;
    s->oldest = INFINITY;
    s->latest = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        uint8_t flags = frame[FLAGS];
        if (!is_plain(s->plain, s->expected, frame))
            return 0;
        if (!s->end_to_end && (flags & (SEQUENCED | REPAIR)) != (s->sequenced ? SEQUENCED : 0))
            return 0;
        if (s->sequenced && big16(frame + SEQUENCE) != (uint16_t)(s->arrived + 1 + i))
            return 0;
        int64_t wire = big32(frame + FRAGMENT), slot = wire & (s->window - 1);
        if (s->wire[slot] != wire || s->tries[slot] != 1 || frame[REDUCTION] != s->reduction)
            return 0;
        int64_t data = s->fragment[slot] - s->first - s->prologue;
        int64_t next = s->fragment[slot] + s->window;
        if (data < 0 || s->fragment[slot] >= s->end)
            return 0;
        if (next >= s->end && next < s->end_of_stream)
            return 0;
        s->last[slot] = i;
        s->marked += (flags & ECN) != 0;
        newest = s->order[slot] > newest ? s->order[slot] : newest;
        s->oldest = s->sent_at[slot] < s->oldest ? s->sent_at[slot] : s->oldest;
        s->latest = s->sent_at[slot] > s->latest ? s->sent_at[slot] : s->latest;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t wire = big32(frames + i * stride + FRAGMENT);
        if (s->last[wire & (s->window - 1)] != i)
            return 0;
    }
    /* Nothing is overtaken: see Recovery.in_order. */
    if (s->open - n != s->next - 1 - newest || s->newest_void > newest)
        return 0;
    s->last_answered = newest;
    return 1;
}

/* Turn n sums back into float32 by the factor of an exponent byte: numbers.dequantise. */
static void dequantise(const struct stream *s, const int32_t *sums, int64_t n, uint8_t code, float *to)
{
    float factor = s->down[code];
    if (factor == 0)
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)((double)sums[i] * s->step[code]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)sums[i] * factor;
}

/* Scale n float32 by an exponent byte to integers: numbers.quantise. */
static void quantise(const struct stream *s, const float *from, int64_t n, uint8_t code, int32_t *to)
{
    float factor = s->up[code];
    if (factor == 0) {
        double step = s->step[code], most = (double)((INT64_C(1) << (31 - s->bits)) - 1);
        for (int64_t i = 0; i < n; i++) {
            double scaled = rint((double)from[i] / step);
            scaled = scaled < most ? scaled : most;
            scaled = scaled > -most ? scaled : -most;
            to[i] = (int32_t)scaled;
        }
    } else if (s->limit) {
        float limit = (float)s->limit;
        for (int64_t i = 0; i < n; i++) {
            float scaled = rintf(from[i] * factor);
            scaled = scaled < limit ? scaled : limit;
            scaled = scaled > -limit ? scaled : -limit;
            to[i] = (int32_t)scaled;
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = (int32_t)rintf(from[i] * factor);
    }
}

static void store(const struct stream *s, int64_t data, const uint8_t *lanes, uint8_t code)
{
    int64_t n = numbers_in(s, data);
    int32_t sums[s->lanes], *to = s->prologue ? sums : (int32_t *)s->result + data * s->lanes;
    for (int64_t i = 0; i < n; i++)
        to[i] = (int32_t)big32(lanes + 4 * i);
    if (s->prologue)
        dequantise(s, sums, n, code, (float *)s->result + data * s->lanes);
}

static void load(const struct stream *s, int64_t data, uint8_t *lanes, uint8_t code)
{
    int64_t n = numbers_in(s, data);
    int32_t scaled[s->lanes];
    const int32_t *from = s->prologue ? scaled : (const int32_t *)s->source + data * s->lanes;
    if (s->prologue)
        quantise(s, (const float *)s->source + data * s->lanes, n, code, scaled);
    for (int64_t i = 0; i < n; i++)
        put32(lanes + 4 * i, (uint32_t)from[i]);
    memset(lanes + 4 * n, 0, (size_t)(4 * (s->lanes - n)));
}

/* Make the frame of a fragment of the tensor, which an idle slot sends for the first time. */
static void make_frame(struct stream *s, int64_t fragment, uint8_t *made, double now, double due)
{
    int64_t wire = fragment & 0xFFFFFFFF, slot = fragment & (s->window - 1);
    int64_t data = fragment - s->first - s->prologue;
    uint64_t length = (uint64_t)(s->prefix_bytes + 4 * s->lanes);
    memcpy(made, s->prefix, (size_t)s->prefix_bytes);
    put32(made + FRAGMENT, (uint32_t)wire);
    made[EXPONENT] = s->prologue ? s->announced[fragment - s->first] : (uint8_t)s->byte;
    made[FLAGS] = (uint8_t)s->flags;
    made[REDUCTION] = (uint8_t)(data < 0 ? NONE : s->reduction);
    if (data < 0)
        memset(made + s->prefix_bytes, 0, (size_t)(4 * s->lanes));
    else
        load(s, data, made + s->prefix_bytes, s->code[slot]);
    if (s->numbered) {
        s->log[s->log_next % s->log_size] = wire;
        give_number(made, s->log_next++);
    }
    memcpy(s->frames + (uint64_t)slot * length, made, length);
    s->wire[slot] = wire;
    s->due[slot] = due;
    s->first_sent_at[slot] = s->sent_at[slot] = now;
    s->tries[slot] = 1;
    s->timeouts[slot] = 0;
    s->order[slot] = s->next++;
}

/* Return when fragments that are sent now time out. */
static double due_after(const struct stream *s, double now)
{
    return now + (s->timeout < s->deadline ? s->timeout : s->deadline);
}

/* Count n frames that went out for the first time. */
static void went_out(struct stream *s, uint32_t n, double now, double due)
{
    if (!n)
        return;
    s->open += n;
    s->sent += n;
    s->last_sent_at = now;
    s->next_due = due < s->next_due ? due : s->next_due;
}

/* Take in one measured round trip: RoundTrip.sample. */
static void sample(struct stream *s, double seconds)
{
    if (s->smoothed < 0) {
        s->smoothed = seconds;
        s->variation = seconds / 2;
    } else {
        s->variation += (fabs(s->smoothed - seconds) - s->variation) / 4;
        s->smoothed += (seconds - s->smoothed) / 8;
    }
    double timeout = s->smoothed + 4 * s->variation;
    timeout = timeout > s->least_timeout ? timeout : s->least_timeout;
    s->timeout = timeout < s->most_timeout ? timeout : s->most_timeout;
}

static int is_limited(const struct stream *s)
{
    return s->size < (double)s->window;
}

/* Let the window follow what results say of queues, of which one met a long one if `marked`:
 * CongestionWindow.answered. */
static void heed(struct stream *s, double round_trip, int marked)
{
    if (!s->congestible || !(marked || is_limited(s)))
        return;
    s->shortest_round = round_trip < s->shortest_round ? round_trip : s->shortest_round;
    if (marked && s->last_answered >= s->reacted) {
        double size = s->size < (double)s->open ? s->size : (double)s->open;
        double least = s->most < LEAST_WINDOW ? s->most : LEAST_WINDOW;
        s->size = size / 2 > least ? size / 2 : least;
        s->reacted = s->next;
    } else if (s->last_answered >= s->round && s->open >= (int64_t)s->size) {
        double step = s->path_step;
        if (s->shortest_round <= NO_QUEUE * s->path_round_trip)
            step = step > s->size ? step : s->size;
        s->size = s->size + step < s->most ? s->size + step : s->most;
    } else {
        return;
    }
    s->round = s->next;
    s->shortest_round = INFINITY;
}

/* Take in the result of the tensor's prologue, which is alone in flight and was sent once. Returns 0,
 * and changes nothing, if the frame is anything else. */
int ordinary_prologue(struct stream *s, const uint8_t *frame, double now)
{
    int64_t wire = big32(frame + FRAGMENT), slot = wire & (s->window - 1);
    int numbered = s->end_to_end || frame[FLAGS] & SEQUENCED, marked = (frame[FLAGS] & ECN) != 0;
    if (!is_plain(s->plain, s->expected, frame) || frame[REDUCTION] != NONE
        || (!s->end_to_end && frame[FLAGS] & REPAIR))
        return 0;
    if (numbered && big16(frame + SEQUENCE) != (uint16_t)(s->arrived + 1))
        return 0;
    if (!s->prologue || s->fragment[slot] != s->first || s->wire[slot] != wire || s->tries[slot] != 1
        || s->open != 1)
        return 0;
    s->arrived += numbered;
    s->ecn += marked;
    s->accepted++;
    s->open--;
    s->left--;
    s->answered_at = *s->progress = now;
    s->probes = 0;
    s->result_wire[slot] = wire;
    s->result_code[slot] = s->code[slot] = frame[EXPONENT];
    s->result_reduction[slot] = NONE;
    memcpy(s->result_lanes + slot * 4 * s->lanes, frame + s->lanes_at, (size_t)(4 * s->lanes));
    s->wire[slot] = IDLE;
    s->due[slot] = s->overtaken_at[slot] = INFINITY;
    s->fragment[slot] += s->window;
    /* It is shorter than data, so it is evidence only if it took as long: Recovery.answered. */
    double plausible = s->quiet[slot] ? s->shortest : s->smoothed < 0 ? INFINITY : s->smoothed;
    int64_t *place = now - s->sent_at[slot] >= plausible ? &s->newest : &s->newest_void;
    *place = s->order[slot] > *place ? s->order[slot] : *place;
    if (s->newest != s->next - 1 || s->newest_void > s->newest) {
        s->reacted = s->next;
        s->repair_due = INFINITY;
    }
    s->last_answered = s->order[slot];
    s->open++;
    if (marked || is_limited(s))
        heed(s, now - s->sent_at[slot], marked);
    s->open--;
    return 1;
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Send the next fragments of idle slots, as far as the window allows (Flight.idle), they are of this
 * tensor, and `out` has room. Returns how many; `refill`: whether there are more. */
static uint32_t fill(struct stream *s, double now, double due, uint8_t *out, uint64_t pitch, uint32_t room)
{
    int64_t idle[s->window], least = INT64_MAX, count = 0, most = (int64_t)s->size - s->open;
    uint32_t sent = 0;
    for (int64_t slot = 0; slot < s->window; slot++) {
        int64_t fragment = s->fragment[slot];
        least = fragment < least ? fragment : least;
        if (s->wire[slot] == IDLE && fragment < s->end_of_stream)
            idle[count++] = fragment;
    }
    qsort(idle, (size_t)count, sizeof idle[0], ascending);
    for (int64_t i = 0; i < count && (i < most || idle[i] < least + (int64_t)s->size); i++) {
        int64_t data = idle[i] - s->first - s->prologue, slot = idle[i] & (s->window - 1);
        int early = s->prologue && data < s->window;
        s->refill = data < 0 || idle[i] >= s->end || (early && s->first_code == UNKNOWN) || sent == room;
        if (s->refill)
            break;
        if (early)
            s->code[slot] = (uint8_t)s->first_code;
        make_frame(s, idle[i], out + sent++ * pitch, now, due);
    }
    return sent;
}

/* Take the results in that ordinary_look has found ordinary. The next fragments of their slots, or of
 * others while the window is limited, go to `out`, `pitch` bytes apart. Returns how many. */
uint32_t ordinary_take(struct stream *s, const uint8_t *frames, uint32_t n, uint64_t stride, double now,
                       uint8_t *out, uint64_t pitch, uint32_t room)
{
    uint64_t lane_bytes = (uint64_t)(4 * s->lanes);
    uint32_t sent = 0;
    int limited = is_limited(s);
    if (s->marked || limited)
        heed(s, now - s->latest, s->marked > 0);
    limited |= is_limited(s);
    s->refill = 0;
    s->arrived += s->sequenced ? n : 0;
    s->ecn += s->marked;
    s->accepted += n;
    s->answered_at = *s->progress = now;
    s->probes = 0;
    s->shortest = now - s->latest < s->shortest ? now - s->latest : s->shortest;
    s->newest = s->last_answered;
    sample(s, now - s->oldest);
    double due = due_after(s, now);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        int64_t wire = big32(frame + FRAGMENT), slot = wire & (s->window - 1);
        int64_t fragment = s->fragment[slot];
        store(s, fragment - s->first - s->prologue, frame + s->lanes_at, s->code[slot]);
        s->result_wire[slot] = wire;
        s->result_code[slot] = s->code[slot] = frame[EXPONENT];
        s->result_reduction[slot] = (uint8_t)s->reduction;
        memcpy(s->result_lanes + (uint64_t)slot * lane_bytes, frame + s->lanes_at, lane_bytes);
        if (s->remarked && frame[EXPONENT] > s->remark)
            s->remark = frame[EXPONENT];
        s->overtaken_at[slot] = INFINITY;
        s->fragment[slot] = fragment += s->window;
        if (!limited && fragment < s->end) {
            make_frame(s, fragment, out + sent++ * pitch, now, due);
        } else {
            s->wire[slot] = IDLE;
            s->due[slot] = INFINITY;
        }
    }
    went_out(s, sent, now, due);
    s->open -= n;
    s->left -= n;
    if (limited) {
        sent = fill(s, now, due, out, pitch, room);
        went_out(s, sent, now, due);
    }
    return sent;
}

/* Make the frames of n fragments of the tensor, which idle slots send for the first time, one behind
 * the other in `out`. Returns 0, and changes nothing, if one of them is not ordinary. */
int ordinary_send(struct stream *s, const int64_t *fragments, uint32_t n, double now, uint8_t *out)
{
    uint64_t length = (uint64_t)(s->prefix_bytes + 4 * s->lanes);
    double due = due_after(s, now);
    for (uint32_t i = 0; i < n; i++) {
        if (fragments[i] < s->first || fragments[i] >= s->end)
            return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        make_frame(s, fragments[i], out + i * length, now, due);
    went_out(s, n, now, due);
    return 1;
}

/* Return when the stream has something to do without results: Flight.deadline, with no probe sent. */
static double due_of(const struct stream *s)
{
    if (!s->open)
        return INFINITY;
    double patience = 2 * s->shortest > s->min_probe ? 2 * s->shortest : s->min_probe;
    patience = patience < s->max_probe ? patience : s->max_probe;
    double due = (*s->progress > s->last_sent_at ? *s->progress : s->last_sent_at) + patience;
    due = s->next_due < due ? s->next_due : due;
    return s->repair_due < due ? s->repair_due : due;
}

/* Let the flow say what it waits for. */
static void settle(struct stream *s)
{
    s->flow.due = due_of(s);
    s->flow.deferrable = s->open / (s->open >= (int64_t)s->size ? 4 : 2);
    s->flow.finished = !s->left || s->refill;
}

/* Take in the first of n results if they are ordinary, with lanes whether or not the wire has any: a
 * prologue's alone, or all. Frames to send go to `out`, `pitch` bytes apart, `room` of them at most, and
 * their number to `made`. Returns how many were taken in, 0 without effect. */
static uint32_t take_results(struct stream *s, const uint8_t *frames, uint32_t n, uint64_t stride, double now,
                             uint8_t *out, uint64_t pitch, uint32_t room, uint32_t *made)
{
    if (frames[REDUCTION] == NONE) {
        if (s->first_code != UNKNOWN || !ordinary_prologue(s, frames, now))
            return 0;
        n = 1;
        s->begun = frames[EXPONENT];
        /* Else others' prologues are awaited, and Python knows when they have come. */
        if (s->alone) {
            double due = due_after(s, now);
            s->first_code = s->begun;
            *made = fill(s, now, due, out, pitch, room);
            went_out(s, *made, now, due);
        } else {
            s->refill = 1;
        }
    } else {
        n = n < room ? n : room;
        if (!ordinary_look(s, frames, n, stride))
            return 0;
        *made = ordinary_take(s, frames, n, stride, now, out, pitch, room);
    }
    settle(s);
    return n;
}

/* A stream's `process`, see flow.h. */
uint32_t ordinary_results(struct flow *flow, uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                          double now, uint8_t *out, uint32_t *out_lengths, uint32_t room, uint32_t *made)
{
    struct stream *s = (struct stream *)flow;
    int bare = lacks_lanes(frames, length, stride, s->lanes_at, s->lanes, BARE_DOWN);
    if (bare < 0)
        return 0;
    if (bare)
        add_lanes(frames, n, length, stride, s->lanes);
    uint32_t taken = take_results(s, frames, n, stride, now, out, stride, room, made);
    if (bare)
        drop_lanes(frames + taken * stride, n - taken, stride, s->lanes);
    finish(out, *made, stride, out_lengths, s->prefix_bytes + 4 * s->lanes, s->lanes, BARE_UP);
    return taken;
}

/* A stream's `expire`: while results arrive, fragments that are not overtaken are queued
 * (Flight._expire_due). */
int ordinary_expire(struct flow *flow, double now)
{
    struct stream *s = (struct stream *)flow;
    double until = s->answered_at + s->timeout, next = INFINITY;
    if (s->next_due > now || until <= now || s->repair_due <= now || s->probes)
        return 0;
    for (int64_t slot = 0; slot < s->window; slot++) {
        double latest = s->first_sent_at[slot] + s->deadline;
        if (s->due[slot] <= now && latest <= now)
            return 0;
    }
    for (int64_t slot = 0; slot < s->window; slot++) {
        double latest = s->first_sent_at[slot] + s->deadline;
        if (s->due[slot] <= now)
            s->due[slot] = until < latest ? until : latest;
        next = s->due[slot] < next ? s->due[slot] : next;
    }
    s->next_due = next;
    flow->due = due_of(s);
    return flow->due > now;
}
