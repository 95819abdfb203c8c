/* Calls of a process that are expected, as a stream takes them from the process's socket, submits and answers them:
 * see sure_calls.py, and node/process_source.py (Sure guesses) for what makes them certain and for all others. A
 * packet is looked at before it is taken, so one that is not as expected is left whole; a result that does not
 * conclude its call is left, too. */
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
    /* Of the ranks, which may be more than the stream's workers. */
    struct factors factors;
    /* When calls began and ended, by place in `expected`. */
    double *began, *ended;
    int64_t socket, count, ranks, next;
    /* The call under way, 1, the exponent byte sent with it, and its tensor's number in the stream. */
    int64_t under_way, own, segment;
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

static int32_t in_order(int32_t bits)
{
    return bits ^ ((bits >> 31) & INT32_MAX);
}

/* Put a process's values into those of the call, as integers that the switches combine. Returns 0 if they must
 * not be submitted. */
static int take_values(struct stream *s, const struct packet *p, const void *memory)
{
    struct calls *c = s->calls;
    const struct expected *e = &c->expected[c->next];
    c->own = c->values[0] = 0;
    if (e->kind == BARRIER)
        return 1;
    if (e->scaled) {
        c->own = exponent_code(memory, e->elements);
        if (c->own == UNKNOWN || c->own > e->code)
            return 0;
        quantise(&c->factors, memory, e->elements, e->code, c->values);
        return 1;
    }
    if ((int64_t)p->magnitude * c->ranks > INT32_MAX)
        return 0;
    for (uint32_t i = 0; i < e->elements; i++) {
        int32_t value = ((const int32_t *)memory)[i];
        value = e->ordered ? in_order(value) : value;
        c->values[i] = e->complemented ? ~value : value;
    }
    return 1;
}

/* Give the process the result; the call's stay as they are. */
static void give_values(const struct stream *s, void *memory)
{
    const struct expected *e = &s->calls->expected[s->calls->next];
    const int32_t *values = s->calls->values;
    if (e->scaled) {
        dequantise(&s->calls->factors, values, e->elements, e->code, memory);
        return;
    }
    for (uint32_t i = 0; i < e->elements; i++) {
        int32_t value = e->complemented ? ~values[i] : values[i];
        ((int32_t *)memory)[i] = e->ordered ? in_order(value) : value;
    }
}

/* Take a call that waits at the process's socket, if it is expected and nothing else is open, and send its first
 * fragments. Returns whether there was one. */
static int begin_call(struct stream *s, double now, struct output *out)
{
    struct calls *c = s->calls;
    struct packet packet;
    int waiting;
    if (!c || c->under_way || c->next >= c->count || s->first_segment < s->next_segment || s->failure)
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
    c->began[c->next] = now;
    c->segment = s->next_segment++;
    struct segment *t = segment_at(s, c->segment);
    memset(t, 0, sizeof *t);
    t->source = t->result = c->values;
    t->trees = 1;
    t->elements = packet.kind == BARRIER ? 1 : packet.elements;
    t->reduction = c->expected[c->next].combined;
    t->remark = c->own;
    t->open = (t->elements + s->values - 1) / s->values;
    t->first = s->end;
    s->end = t->first + t->open;
    fill_window(s, now, out);
    return 1;
}

/* Answer the call under way, if there is one and all its results have come, unless that is not for this pass to do. */
static void answer_call(struct stream *s, double now)
{
    struct calls *c = s->calls;
    if (!c || !c->under_way || segment_at(s, c->segment)->open)
        return;
    struct end end = {.kind = DONE, .number = c->packet.number};
    if (segment_at(s, c->segment)->greatest != c->expected[c->next].code)
        return;
    if (c->packet.kind != BARRIER)
        give_values(s, (void *)c->memories[c->packet.memory]);
    if (send((int)c->socket, &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof end)
        return;
    c->ended[c->next++] = now;
    c->under_way = 0;
    /* Python need not know, until there are no more to expect. */
    if (c->next < c->count)
        s->news--;
}
