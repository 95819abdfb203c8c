/* What a server does with ordinary sums, in one pass: see ordinary.py, and server.py for all else. Frames
 * are looked at before anything changes, so whatever is not ordinary is left whole. */

struct server {
    struct flow flow;
    /* The server's arrays, by slot: the fragment being summed, and the last one finished. */
    int64_t *fragment, *done, *done_number, *last;
    uint8_t *own, *done_lanes, *done_code, *done_flags, *done_reduction;
    /* State of the fragment being summed; `held` by slot and child. */
    uint8_t *held, *started, *flags, *code, *reduction;
    int64_t *covered;
    int32_t *sum;
    double *since;
    int64_t *log;
    const uint8_t *plain, *expected, *prefix;
    /* By child: how many workers it covers, NO_WEIGHT if there is none or its sums are not ordinary,
     * and the newest number received from it. */
    int64_t *weights, *arrivals;
    int64_t window, lanes, log_size, prefix_bytes, workers, children, lanes_at;
    /* State of the server. */
    int64_t log_next, tos;
    /* Packets since `load`. */
    int64_t sums, results, overflowed;
    /* The child that `look` has seen. */
    int64_t child;
};

static int is_newer(int64_t a, int64_t b)
{
    uint32_t distance = (uint32_t)(a - b);
    return b == EMPTY || (distance && distance < 0x80000000u);
}

/* Whether n frames, `stride` bytes apart, are sums of one child's workers, each of a fragment that is
 * new or lacks this child's, in the child's order; changes nothing but `last` and `child`. */
int ordinary_look_at_sums(struct server *s, const uint8_t *frames, uint32_t n, uint64_t stride)
{
    int64_t child = s->child = child_of(frames), weight = s->weights[child];
    if (weight == NO_WEIGHT)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        if (!is_plain(s->plain, s->expected, frame)
            || (frame[FLAGS] & (SEQUENCED | REPAIR)) != SEQUENCED
            || child_of(frame) != child || big16(frame + WEIGHT) != weight
            || (frame[TOS] & ~URGENT) != s->tos
            || big16(frame + SEQUENCE) != (uint16_t)(s->arrivals[child] + 1 + i))
            return 0;
        int64_t fragment = big32(frame + FRAGMENT), slot = fragment & (s->window - 1);
        if (!is_newer(fragment, s->done[slot]))
            return 0;
        if (s->fragment[slot] != EMPTY
            && (s->fragment[slot] != fragment || weight == s->workers
                || s->reduction[slot] != frame[REDUCTION]
                || s->held[slot * s->children + child]))
            return 0;
        s->last[slot] = i;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t fragment = big32(frames + i * stride + FRAGMENT);
        if (s->last[fragment & (s->window - 1)] != i)
            return 0;
    }
    return 1;
}

/* Combine lanes with those of a sum; returns OVERFLOW if one wraps around. */
static uint8_t combine(int32_t *sum, const uint8_t *lanes, int64_t n, uint8_t reduction)
{
    uint32_t wrapped = 0;
    switch (reduction) {
    case AND:
    case REDUCE_AND:
        for (int64_t i = 0; i < n; i++)
            sum[i] &= (int32_t)big32(lanes + 4 * i);
        return 0;
    case XOR:
    case REDUCE_XOR:
        for (int64_t i = 0; i < n; i++)
            sum[i] ^= (int32_t)big32(lanes + 4 * i);
        return 0;
    case MAX:
    case REDUCE_MAX:
        for (int64_t i = 0; i < n; i++) {
            int32_t value = (int32_t)big32(lanes + 4 * i);
            sum[i] = sum[i] > value ? sum[i] : value;
        }
        return 0;
    case NONE:       /* of zeros */
    case BROADCAST:  /* of zeros and the root's */
        for (int64_t i = 0; i < n; i++)
            sum[i] |= (int32_t)big32(lanes + 4 * i);
        return 0;
    default:
        for (int64_t i = 0; i < n; i++) {
            uint32_t a = (uint32_t)sum[i], b = big32(lanes + 4 * i), total = a + b;
            wrapped |= (a ^ total) & (b ^ total);
            sum[i] = (int32_t)total;
        }
        return wrapped >> 31 ? OVERFLOW : 0;
    }
}

/* Add a frame's lanes to its fragment's sum; returns whether all workers' are in it. */
static int add(struct server *s, const uint8_t *frame, int64_t fragment, int64_t slot, double now)
{
    const uint8_t *lanes = frame + s->lanes_at;
    int32_t *sum = s->sum + slot * s->lanes;
    uint8_t flags = frame[FLAGS] & (OVERFLOW | ECN);
    if (s->fragment[slot] == EMPTY) {
        s->fragment[slot] = fragment;
        s->since[slot] = now;
        s->reduction[slot] = frame[REDUCTION];
        memset(s->held + slot * s->children, 0, (size_t)s->children);
        s->started[slot] = s->flags[slot] = s->code[slot] = 0;
        s->covered[slot] = 0;
    }
    if (s->started[slot])
        flags |= combine(sum, lanes, s->lanes, frame[REDUCTION]);
    else
        for (int64_t i = 0; i < s->lanes; i++)
            sum[i] = (int32_t)big32(lanes + 4 * i);
    s->held[slot * s->children + s->child] = s->started[slot] = 1;
    s->covered[slot] += s->weights[s->child];
    s->flags[slot] |= flags;
    s->code[slot] = s->code[slot] > frame[EXPONENT] ? s->code[slot] : frame[EXPONENT];
    return s->covered[slot] == s->workers;
}

/* Take the sums in that were looked at: results of those that are complete go to `out`, `pitch` bytes
 * apart. Returns how many. */
uint32_t ordinary_take_sums(struct server *s, const uint8_t *frames, uint32_t n, uint64_t stride, double now,
                            uint8_t *out, uint64_t pitch)
{
    size_t lane_bytes = (size_t)(4 * s->lanes);
    uint32_t completed = 0;
    s->arrivals[s->child] += n;
    s->sums += n;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        int64_t fragment = big32(frame + FRAGMENT), slot = fragment & (s->window - 1);
        uint8_t *kept = s->done_lanes + (size_t)slot * lane_bytes;
        uint8_t flags = frame[FLAGS] & (OVERFLOW | ECN), code = frame[EXPONENT];
        if (s->weights[s->child] == s->workers) {
            memcpy(kept, frame + s->lanes_at, lane_bytes);
        } else if (add(s, frame, fragment, slot, now)) {
            for (int64_t lane = 0; lane < s->lanes; lane++)
                put32(kept + 4 * lane, (uint32_t)s->sum[slot * s->lanes + lane]);
            flags = s->flags[slot];
            code = s->code[slot];
            s->fragment[slot] = EMPTY;
        } else {
            continue;
        }
        uint8_t *made = out + completed++ * pitch;
        s->done[slot] = fragment;
        s->own[slot] = 1;
        s->done_code[slot] = code;
        s->done_flags[slot] = flags;
        s->done_reduction[slot] = frame[REDUCTION];
        s->log[s->log_next % s->log_size] = fragment;
        s->done_number[slot] = s->log_next & 0xFFFF;
        memcpy(made, s->prefix, (size_t)s->prefix_bytes);
        put32(made + FRAGMENT, (uint32_t)fragment);
        made[EXPONENT] = code;
        made[FLAGS] = flags;
        made[REDUCTION] = frame[REDUCTION];
        give_number(made, s->log_next++);
        memcpy(made + s->prefix_bytes, kept, lane_bytes);
        s->overflowed += (flags & OVERFLOW) != 0;
    }
    s->results += completed;
    return completed;
}

/* Take in the first of n sums of one child, as far as they are ordinary: frames as of `process`. Results go
 * to `out` with lanes, and their number to `made`. Returns how many were taken in, 0 without effect. */
static uint32_t take_sums(struct server *s, uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                          double now, uint8_t *out, uint32_t room, uint32_t *made)
{
    int bare = lacks_lanes(frames, length, stride, s->lanes_at, s->lanes, BARE_UP);
    if (bare < 0)
        return 0;
    uint32_t run = 0;
    while (run < n && run < room && child_of(frames + run * stride) == child_of(frames)
           && is_bare(frames + run * stride, BARE_UP) == bare)
        run++;
    if (!run)
        return 0;
    if (bare)
        add_lanes(frames, run, length, stride, s->lanes);
    if (!ordinary_look_at_sums(s, frames, run, stride)) {
        if (bare)
            drop_lanes(frames, run, stride, s->lanes);
        return 0;
    }
    *made = ordinary_take_sums(s, frames, run, stride, now, out, stride);
    return run;
}

/* A server's `process`, see flow.h. */
uint32_t ordinary_sums(struct flow *flow, uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                       double now, uint8_t *out, uint32_t *out_lengths, uint32_t room, uint32_t *made)
{
    struct server *s = (struct server *)flow;
    uint32_t taken = take_sums(s, frames, n, length, stride, now, out, room, made);
    finish(out, *made, stride, out_lengths, s->prefix_bytes + 4 * s->lanes, s->lanes, BARE_DOWN);
    return taken;
}
