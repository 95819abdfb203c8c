/* What a worker's stream does with ordinary results and fragments, and a server with ordinary sums,
 * in one pass: see ordinary.py, and stream.py and server.py for all else. Frames are looked at before
 * anything changes, so whatever is not ordinary is left whole. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ordinary.py puts the layout of frames before this text: offsets (FIRST, LAST, FLAGS, REDUCTION,
 * EXPONENT, WEIGHT, SEQUENCE, FRAGMENT, STACK), flags (OVERFLOW, ECN, SEQUENCED, REPAIR), and the
 * bytes of reductions (AND, REDUCE_AND, ...). */
enum { WORDS = (LAST - FIRST) / 8, IDLE = -1, EMPTY = -1 };

struct stream {
    /* The stream's arrays, by slot. */
    int64_t *fragment, *wire, *result_wire, *order, *last;
    double *due, *first_sent_at, *sent_at, *overtaken_at;
    int32_t *tries, *timeouts;
    uint8_t *code, *result_code, *result_reduction, *result_lanes, *frames;
    /* Log of frames that its neighbour may request, by number. */
    int64_t *log;
    /* Its frames: plain ones, and the constant part of all it sends. */
    const uint8_t *plain, *expected, *prefix;
    /* By exponent byte: factors to integers and back, 0 for those that are converted in double; and the
     * value of an integer 1. */
    const float *up, *down;
    const double *step;
    int64_t window, lanes, log_size, prefix_bytes, flags, numbered, limit, bits;
    /* The tensor whose results come. */
    const void *source;
    void *result;
    const uint8_t *announced;
    int64_t first, prologue, end, elements, reduction, byte;
    /* The batch, and the state of the stream. */
    double now;
    int64_t end_of_stream, arrived, log_next, next, newest, newest_void, open;
    /* What `look` finds. */
    int64_t sequenced, marked;
    double oldest, latest;
};

static inline uint16_t big16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t big32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

static inline void put32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static int is_plain(const uint8_t *plain, const uint8_t *wanted, const uint8_t *frame)
{
    uint64_t different = 0;
    for (int i = 0; i < WORDS; i++) {
        uint64_t word, mask, expected;
        memcpy(&word, frame + FIRST + 8 * i, 8);
        memcpy(&mask, plain + 8 * i, 8);
        memcpy(&expected, wanted + 8 * i, 8);
        different |= (word ^ expected) & mask;
    }
    return !different;
}

static void give_number(uint8_t *frame, int64_t number)
{
    frame[SEQUENCE] = (uint8_t)(number >> 8);
    frame[SEQUENCE + 1] = (uint8_t)number;
    frame[FLAGS] |= SEQUENCED;
}

static int64_t numbers_in(const struct stream *s, int64_t data)
{
    int64_t left = s->elements - data * s->lanes;
    return left < s->lanes ? left : s->lanes;
}

/* Whether n frames, `stride` bytes apart, are ordinary results; changes nothing but `last`. */
int ordinary_look(struct stream *s, const uint8_t *frames, uint32_t n, uint64_t stride)
{
    int64_t newest = s->newest;
    s->sequenced = (frames[FLAGS] & SEQUENCED) != 0;
    s->marked = 0;
    s->oldest = INFINITY;
    s->latest = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        uint8_t flags = frame[FLAGS];
        if (!is_plain(s->plain, s->expected, frame))
            return 0;
        if ((flags & (SEQUENCED | REPAIR)) != (s->sequenced ? SEQUENCED : 0))
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
    s->newest = newest;
    return 1;
}

static void store(const struct stream *s, int64_t data, const uint8_t *lanes, uint8_t code)
{
    int64_t n = numbers_in(s, data);
    float factor = s->down[code];
    if (!s->prologue) {
        int32_t *to = (int32_t *)s->result + data * s->lanes;
        for (int64_t i = 0; i < n; i++)
            to[i] = (int32_t)big32(lanes + 4 * i);
        return;
    }
    float *to = (float *)s->result + data * s->lanes;
    if (factor == 0)
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)((double)(int32_t)big32(lanes + 4 * i) * s->step[code]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)(int32_t)big32(lanes + 4 * i) * factor;
}

static void load(const struct stream *s, int64_t data, uint8_t *lanes, uint8_t code)
{
    int64_t n = numbers_in(s, data);
    float factor = s->up[code];
    if (!s->prologue) {
        const int32_t *from = (const int32_t *)s->source + data * s->lanes;
        for (int64_t i = 0; i < n; i++)
            put32(lanes + 4 * i, (uint32_t)from[i]);
    } else if (factor == 0) {
        const float *from = (const float *)s->source + data * s->lanes;
        double step = s->step[code], most = (double)((INT64_C(1) << (31 - s->bits)) - 1);
        for (int64_t i = 0; i < n; i++) {
            double scaled = rint((double)from[i] / step);
            scaled = scaled < most ? scaled : most;
            scaled = scaled > -most ? scaled : -most;
            put32(lanes + 4 * i, (uint32_t)(int32_t)scaled);
        }
    } else if (s->limit) {
        const float *from = (const float *)s->source + data * s->lanes;
        float limit = (float)s->limit;
        for (int64_t i = 0; i < n; i++) {
            float scaled = rintf(from[i] * factor);
            scaled = scaled < limit ? scaled : limit;
            scaled = scaled > -limit ? scaled : -limit;
            put32(lanes + 4 * i, (uint32_t)(int32_t)scaled);
        }
    } else {
        const float *from = (const float *)s->source + data * s->lanes;
        for (int64_t i = 0; i < n; i++)
            put32(lanes + 4 * i, (uint32_t)(int32_t)rintf(from[i] * factor));
    }
    memset(lanes + 4 * n, 0, (size_t)(4 * (s->lanes - n)));
}

/* Make the frame of a data fragment, which is sent for the first time, from an idle slot. */
static void make_frame(struct stream *s, int64_t fragment, uint8_t *made, double due)
{
    int64_t wire = fragment & 0xFFFFFFFF, slot = fragment & (s->window - 1);
    uint64_t length = (uint64_t)(s->prefix_bytes + 4 * s->lanes);
    memcpy(made, s->prefix, (size_t)s->prefix_bytes);
    put32(made + FRAGMENT, (uint32_t)wire);
    made[EXPONENT] = s->prologue ? s->announced[fragment - s->first] : (uint8_t)s->byte;
    made[FLAGS] = (uint8_t)s->flags;
    made[REDUCTION] = (uint8_t)s->reduction;
    load(s, fragment - s->first - s->prologue, made + s->prefix_bytes, s->code[slot]);
    if (s->numbered) {
        s->log[s->log_next % s->log_size] = wire;
        give_number(made, s->log_next++);
    }
    memcpy(s->frames + (uint64_t)slot * length, made, length);
    s->wire[slot] = wire;
    s->due[slot] = due;
    s->first_sent_at[slot] = s->sent_at[slot] = s->now;
    s->tries[slot] = 1;
    s->timeouts[slot] = 0;
    s->order[slot] = s->next++;
}

/* Take the results in that ordinary_look has found ordinary. If `go_on`, the next fragments of their
 * slots go to `out`, one behind the other, and are due at `due`. Returns how many. */
uint32_t ordinary_take(struct stream *s, const uint8_t *frames, uint32_t n, uint64_t stride,
                       uint64_t lanes_at, int go_on, uint8_t *out, double due)
{
    uint64_t lane_bytes = (uint64_t)(4 * s->lanes), length = (uint64_t)s->prefix_bytes + lane_bytes;
    uint32_t sent = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        int64_t wire = big32(frame + FRAGMENT), slot = wire & (s->window - 1);
        int64_t fragment = s->fragment[slot];
        store(s, fragment - s->first - s->prologue, frame + lanes_at, s->code[slot]);
        s->result_wire[slot] = wire;
        s->result_code[slot] = s->code[slot] = frame[EXPONENT];
        s->result_reduction[slot] = (uint8_t)s->reduction;
        memcpy(s->result_lanes + (uint64_t)slot * lane_bytes, frame + lanes_at, lane_bytes);
        s->overtaken_at[slot] = INFINITY;
        s->fragment[slot] = fragment += s->window;
        if (go_on && fragment < s->end) {
            make_frame(s, fragment, out + sent++ * length, due);
        } else {
            s->wire[slot] = IDLE;
            s->due[slot] = INFINITY;
        }
    }
    return sent;
}

/* Make the frames of n fragments of the tensor, which idle slots send for the first time, one behind
 * the other in `out`. Returns 0, and changes nothing, if one of them is not ordinary. */
int ordinary_send(struct stream *s, const int64_t *fragments, uint32_t n, uint8_t *out, double due)
{
    uint64_t length = (uint64_t)(s->prefix_bytes + 4 * s->lanes);
    for (uint32_t i = 0; i < n; i++) {
        if (fragments[i] < s->first + s->prologue || fragments[i] >= s->end)
            return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        make_frame(s, fragments[i], out + i * length, due);
    return 1;
}

struct server {
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
    int64_t window, lanes, log_size, prefix_bytes, workers, children, lanes_at;
    /* The batch, and the state of the server. */
    double now;
    int64_t child, weight, arrived, log_next;
    /* What `take` finds. */
    int64_t completed, overflowed;
};

static int is_newer(int64_t a, int64_t b)
{
    uint32_t distance = (uint32_t)(a - b);
    return b == EMPTY || (distance && distance < 0x80000000u);
}

/* Whether n frames, `stride` bytes apart, are sums of one child's workers, each of a fragment that is
 * new or lacks this child's, in the child's order; changes nothing but `last`. */
int ordinary_look_at_sums(struct server *s, const uint8_t *frames, uint32_t n, uint64_t stride)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        if (!is_plain(s->plain, s->expected, frame)
            || (frame[FLAGS] & (SEQUENCED | REPAIR)) != SEQUENCED
            || (frame[STACK] & 0x3F) != s->child || big16(frame + WEIGHT) != s->weight
            || big16(frame + SEQUENCE) != (uint16_t)(s->arrived + 1 + i))
            return 0;
        int64_t fragment = big32(frame + FRAGMENT), slot = fragment & (s->window - 1);
        if (!is_newer(fragment, s->done[slot]))
            return 0;
        if (s->fragment[slot] != EMPTY
            && (s->fragment[slot] != fragment || s->weight == s->workers
                || s->reduction[slot] != frame[REDUCTION]
                || s->held[slot * s->children + s->child]))
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
static int add(struct server *s, const uint8_t *frame, int64_t fragment, int64_t slot)
{
    const uint8_t *lanes = frame + s->lanes_at;
    int32_t *sum = s->sum + slot * s->lanes;
    uint8_t flags = frame[FLAGS] & (OVERFLOW | ECN);
    if (s->fragment[slot] == EMPTY) {
        s->fragment[slot] = fragment;
        s->since[slot] = s->now;
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
    s->covered[slot] += s->weight;
    s->flags[slot] |= flags;
    s->code[slot] = s->code[slot] > frame[EXPONENT] ? s->code[slot] : frame[EXPONENT];
    return s->covered[slot] == s->workers;
}

/* Take the sums in that were looked at: results of those that are complete go to `out`, one behind the
 * other. */
void ordinary_take_sums(struct server *s, const uint8_t *frames, uint32_t n, uint64_t stride,
                        uint8_t *out)
{
    size_t lane_bytes = (size_t)(4 * s->lanes), length = (size_t)s->prefix_bytes + lane_bytes;
    s->overflowed = s->completed = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        int64_t fragment = big32(frame + FRAGMENT), slot = fragment & (s->window - 1);
        uint8_t *kept = s->done_lanes + (size_t)slot * lane_bytes;
        uint8_t flags = frame[FLAGS] & (OVERFLOW | ECN), code = frame[EXPONENT];
        if (s->weight == s->workers) {
            memcpy(kept, frame + s->lanes_at, lane_bytes);
        } else if (add(s, frame, fragment, slot)) {
            for (int64_t lane = 0; lane < s->lanes; lane++)
                put32(kept + 4 * lane, (uint32_t)s->sum[slot * s->lanes + lane]);
            flags = s->flags[slot];
            code = s->code[slot];
            s->fragment[slot] = EMPTY;
        } else {
            continue;
        }
        uint8_t *made = out + s->completed++ * length;
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
}
