/* Calls of a process that are expected, as stream.py's flow takes them from its socket, submits and answers
 * them: see sure_calls.py, and node/process_source.py (Sure guesses) for what makes them certain and for all others.
 * A packet is looked at before it is taken, so one that is not as expected is left whole; a result that does
 * not conclude its call is left, too. */
#include <sys/ioctl.h>
#include <sys/socket.h>

/* docs/agent-socket.md */
struct packet {
    uint8_t kind, type, reduction, fault;
    uint32_t target;
    uint64_t number;
    uint32_t memory, elements, magnitude, element;
};

struct end {
    uint8_t kind, zero[7];
    uint64_t number;
};

struct expected {
    /* Kind to elements are the packet's; `scaled`: float32 summed as integers; `ordered`, `complemented`: what
     * becomes of the bits of other reductions (node/reductions.py). */
    uint8_t kind, type, reduction, scaled, ordered, complemented;
    /* Reduction byte of frames; the greatest exponent byte of all ranks' values, or 0. */
    uint8_t combined, code;
    uint32_t elements;
};

struct calls {
    const struct expected *expected;
    /* Shared memory, by number: address (0: none) and bytes. */
    const uint64_t *memories;
    const int64_t *bytes;
    /* Values of the call under way, which become its result. */
    int32_t *values;
    /* When calls began and ended, by place in `expected`. */
    double *began, *ended;
    int64_t socket, count, ranks, next;
    /* The call under way, 1, and the exponent byte sent with it. */
    int64_t under_way, own;
    struct packet packet;
};

static int is_expected(const struct calls *c, const struct packet *p)
{
    const struct expected *e = &c->expected[c->next];
    return p->kind == e->kind && p->type == e->type && p->reduction == e->reduction && p->elements == e->elements
        && !p->target && !p->fault
        && (p->kind == BARRIER
            || (p->memory < MOST_MEMORIES && c->memories[p->memory]
                && c->bytes[p->memory] >= (int64_t)p->elements * 4));
}

/* Return the exponent byte of n float32 (numbers.exponent_codes), UNKNOWN if one is not finite. */
static int64_t exponent_code(const void *values, int64_t n)
{
    int32_t peak = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t magnitude;
        memcpy(&magnitude, (const uint8_t *)values + 4 * i, 4);
        magnitude &= INT32_MAX;
        peak = magnitude > peak ? magnitude : peak;
    }
    return peak >= 0x7F800000 ? UNKNOWN : (peak >> 23) + (peak >= 0x00400000);
}

static int32_t in_order(int32_t bits)
{
    return bits ^ ((bits >> 31) & INT32_MAX);
}

/* Put a process's values into those of the call, as integers that the switches combine. Returns 0 if they must
 * not be submitted. */
static int take_values(struct stream *s, const struct packet *p, const void *memory)
{
    const struct expected *e = &s->calls->expected[s->calls->next];
    int32_t *values = s->calls->values;
    s->byte = values[0] = 0;
    if (e->kind == BARRIER)
        return 1;
    if (e->scaled) {
        int64_t code = exponent_code(memory, e->elements);
        if (code == UNKNOWN || code > e->code)
            return 0;
        s->byte = code;
        quantise(s, memory, e->elements, e->code, values);
        return 1;
    }
    if ((int64_t)p->magnitude * s->calls->ranks > INT32_MAX)
        return 0;
    for (uint32_t i = 0; i < e->elements; i++) {
        int32_t value = ((const int32_t *)memory)[i];
        value = e->ordered ? in_order(value) : value;
        values[i] = e->complemented ? ~value : value;
    }
    return 1;
}

/* Give the process the result; the call's stay as they are. */
static void give_values(const struct stream *s, void *memory)
{
    const struct expected *e = &s->calls->expected[s->calls->next];
    const int32_t *values = s->calls->values;
    if (e->scaled) {
        dequantise(s, values, e->elements, e->code, memory);
        return;
    }
    for (uint32_t i = 0; i < e->elements; i++) {
        int32_t value = e->complemented ? ~values[i] : values[i];
        ((int32_t *)memory)[i] = e->ordered ? in_order(value) : value;
    }
}

/* Take a call that waits at the process's socket, if it is expected: its first fragments, `room` of them at
 * most, go to `out` with lanes, `pitch` bytes apart, and their number to `made`. Returns whether there was one. */
static int begin_call(struct stream *s, double now, uint8_t *out, uint64_t pitch, uint32_t room, uint32_t *made)
{
    struct calls *c = s->calls;
    struct packet packet;
    int waiting;
    if (c->under_way || c->next >= c->count || s->open || (uint64_t)(s->prefix_bytes + 4 * s->lanes) > pitch)
        return 0;
    /* Calls that have come meanwhile share fragments. */
    if (recv((int)c->socket, &packet, sizeof packet, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC) != sizeof packet
        || ioctl((int)c->socket, FIONREAD, &waiting) < 0 || waiting != sizeof packet || !is_expected(c, &packet))
        return 0;
    const void *memory = packet.kind == BARRIER ? NULL : (const void *)c->memories[packet.memory];
    if (!take_values(s, &packet, memory))
        return 0;
    if (recv((int)c->socket, &c->packet, sizeof packet, MSG_DONTWAIT) != sizeof packet)
        return 0;
    c->under_way = 1;
    c->own = s->byte;
    c->began[c->next] = now;
    s->source = s->result = c->values;
    s->prologue = s->refill = s->remark = 0;
    s->remarked = 1;
    s->elements = packet.kind == BARRIER ? 1 : packet.elements;
    s->reduction = c->expected[c->next].combined;
    s->left = (s->elements + s->lanes - 1) / s->lanes;
    s->first = s->end_of_stream;
    s->end = s->end_of_stream = s->first + s->left;
    double due = due_after(s, now);
    *made = fill(s, now, due, out, pitch, room);
    went_out(s, *made, now, due);
    settle(s);
    return 1;
}

/* A stream's `call`, see flow.h. */
int sure_call(struct flow *flow, double now, uint8_t *out, uint64_t stride, uint32_t *out_lengths, uint32_t room,
              uint32_t *made)
{
    struct stream *s = (struct stream *)flow;
    if (!begin_call(s, now, out, stride, room, made))
        return 0;
    finish(out, *made, stride, out_lengths, s->prefix_bytes + 4 * s->lanes, s->lanes, BARE_UP);
    return 1;
}

/* Answer the call under way, whose result has come. Returns 0 if that is not for this pass to do. */
static int conclude(struct stream *s, double now)
{
    struct calls *c = s->calls;
    struct end end = {.kind = DONE, .number = c->packet.number};
    if (s->remark != c->expected[c->next].code)
        return 0;
    if (c->packet.kind != BARRIER)
        give_values(s, (void *)c->memories[c->packet.memory]);
    if (send((int)c->socket, &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof end)
        return 0;
    c->ended[c->next++] = now;
    c->under_way = 0;
    return 1;
}

/* Answer the call under way, if there is one and all its results have come. */
static void answer(struct stream *s, double now)
{
    struct calls *c = s->calls;
    if (c && c->under_way && !s->left && conclude(s, now))
        s->flow.finished = c->next >= c->count;
}

/* A stream's `process` while it has calls to expect. */
uint32_t sure_results(struct flow *flow, uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride, double now,
                      uint8_t *out, uint32_t *out_lengths, uint32_t room, uint32_t *made)
{
    struct stream *s = (struct stream *)flow;
    uint32_t taken = ordinary_results(flow, frames, n, length, stride, now, out, out_lengths, room, made);
    if (taken)
        answer(s, now);
    return taken;
}
