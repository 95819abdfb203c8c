/* One direction of a link: a queue, a rate, a latency and faults. */

/* Random numbers as of Python's random.Random, whose state it begins with: the Mersenne Twister (MT19937). */
enum { STATE_WORDS = 624, STATE_MIDDLE = 397 };

struct random {
    uint32_t state[STATE_WORDS], next;
};

static uint32_t random_word(struct random *r)
{
    if (r->next >= STATE_WORDS) {
        for (uint32_t i = 0; i < STATE_WORDS; i++) {
            uint32_t y = (r->state[i] & 0x80000000u) | (r->state[(i + 1) % STATE_WORDS] & 0x7FFFFFFFu);
            r->state[i] = r->state[(i + STATE_MIDDLE) % STATE_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908B0DFu : 0);
        }
        r->next = 0;
    }
    uint32_t y = r->state[r->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680u;
    y ^= y << 15 & 0xEFC60000u;
    return y ^ y >> 18;
}

/* Return a number from 0 to 1, as random(). */
static double draw(struct random *r)
{
    uint32_t high = random_word(r) >> 5, low = random_word(r) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

/* Return a number below n > 0, as randrange(n). */
static uint32_t draw_below(struct random *r, uint32_t n)
{
    int bits = 32 - __builtin_clz(n);
    uint32_t drawn;
    do
        drawn = random_word(r) >> (32 - bits);
    while (drawn >= n);
    return drawn;
}

struct world;
struct node;

/* What Python reads and sets of a channel. */
struct channel_view {
    uint64_t bytes, frames, lost, delayed, flipped, duplicated, queue_drops;
    /* Whether every frame is lost at present, and whether any of these faults is possible (Faults). */
    int64_t cut, faulty;
    double loss, burst, corrupt, flip, duplicate, reorder, hold;
    /* Bits a second, 0 without limit; and seconds. */
    double rate, latency;
    /* Its number; the port at its end; times of cuts, start and stop in turn; and frames that are lost. */
    int64_t number, port, cuts, losses;
    double *cut_times;
    uint64_t *lost_frames;
    /* Random numbers, once there were random faults. */
    uint32_t *random;
    /* Waiting frames by the priority of v1model. */
    uint32_t *waiting;
    /* Whether frames wait in queues by priority, and whether flows take turns in each. */
    int64_t queues, fair;
};

struct channel {
    struct channel_view view;
    struct world *world;
    struct node *target;
    struct random random;
    struct queue queues[LEVELS + 1];
    uint32_t waiting[LEVELS];
    /* Bits: queues with frames. */
    uint32_t busy;
    int sending, bad;
};

struct arrival {
    uint32_t port;
    struct frame *frame;
};

/* Frames that reach one node at the same instant. */
struct arrivals {
    double time;
    struct node *node;
    struct arrivals *next;
    uint64_t count, room;
    struct arrival *frames;
};

enum { LEFT, LOST, ENTERED, ENTERED_DEAD, HANDLED };

struct world_view {
    uint64_t packet_hops;
    /* The job << 8 | tree of the flow that has finished last. */
    int64_t finished;
    /* Called with what happens to a frame (above), when, where (the number of a channel or node), and the port. */
    void (*observe)(int what, double time, int64_t where, int64_t port, const uint8_t *bytes, uint32_t length);
};

struct world {
    struct world_view view;
    struct events *events;
    struct pool pool;
    struct output *output;
    /* By time and node, those that are to come; and unused ones. */
    struct arrivals **pending, *unused;
    uint64_t pending_count, pending_room;
    /* What Python has to take: from `taken` on. */
    struct arrivals *handed;
    uint64_t taken;
    /* Frames that a switch has made. */
    struct arrival *made;
    uint64_t made_count, made_room;
    uint8_t *rows;
    uint64_t rows_room;
};

static int64_t arrive(void *subject, double detail);

static struct arrivals **place_of(struct world *w, double time, const struct node *node)
{
    uint64_t key;
    memcpy(&key, &time, sizeof key);
    key = (key ^ (uint64_t)(uintptr_t)node >> 4) * UINT64_C(0x9E3779B97F4A7C15);
    struct arrivals **at = &w->pending[key >> 20 & (w->pending_room - 1)];
    while (*at && ((*at)->time != time || (*at)->node != node))
        at = &(*at)->next;
    return at;
}

static void make_places(struct world *w)
{
    uint64_t before = w->pending_room;
    struct arrivals **old = w->pending, *each;
    w->pending_room = before ? 4 * before : 1024;
    w->pending = NULL;
    RESIZE(w->pending, w->pending_room);
    memset(w->pending, 0, w->pending_room * sizeof *w->pending);
    for (uint64_t i = 0; i < before; i++)
        while ((each = old[i])) {
            old[i] = each->next;
            each->next = NULL;
            *place_of(w, each->time, each->node) = each;
        }
    free(old);
}

static void add_arrival(struct arrivals *a, uint32_t port, struct frame *frame)
{
    if (a->count == a->room) {
        a->room = a->room ? 2 * a->room : 4;
        RESIZE(a->frames, a->room);
    }
    a->frames[a->count++] = (struct arrival){port, frame};
}

/* Schedule a frame's arrival at a node's port. */
static void deliver(struct world *w, double time, struct node *node, uint32_t port, struct frame *frame)
{
    if (w->pending_count >= w->pending_room)
        make_places(w);
    struct arrivals **at = place_of(w, time, node), *a = *at;
    if (!a) {
        a = w->unused;
        if (a)
            w->unused = a->next;
        else
            a = memset(resized(NULL, 1, sizeof *a), 0, sizeof *a);
        a->time = time;
        a->node = node;
        a->next = NULL;
        a->count = 0;
        *at = a;
        w->pending_count++;
        schedule(w->events, time, arrive, a, 0);
    }
    add_arrival(a, port, frame);
}

/* Let what arrives be no longer pending. */
static void take_pending(struct world *w, struct arrivals *a)
{
    *place_of(w, a->time, a->node) = a->next;
    w->pending_count--;
}

static void drop_arrivals(struct world *w, struct arrivals *a)
{
    for (uint64_t i = 0; i < a->count; i++)
        release(&w->pool, a->frames[i].frame);
    a->next = w->unused;
    w->unused = a;
}

static int loses(struct channel *c)
{
    const struct channel_view *v = &c->view;
    double chance = draw(&c->random);
    if (v->burst == 1)
        return chance < v->loss;
    if (c->bad)
        c->bad = chance >= 1 / v->burst;
    else
        c->bad = chance * v->burst * (1 - v->loss) < v->loss;
    return c->bad;
}

static int is_cut(const struct channel_view *v, double departure)
{
    for (int64_t i = 0; i < v->cuts; i++)
        if (v->cut_times[2 * i] <= departure && departure < v->cut_times[2 * i + 1])
            return 1;
    for (int64_t i = 0; i < v->losses; i++)
        if (v->lost_frames[i] == v->frames - 1)
            return 1;
    return v->cut != 0;
}

/* Return whether a frame is hopsum's and longer than its stack, as forged ones may not be. */
static int has_lanes(const struct frame *frame)
{
    return is_hopsum(frame) && frame->length > STACK + HOP_BYTES * (uint32_t)frame->bytes[HOPS];
}

/* Send a frame whose last bit departs at `departure`. */
static void leave(struct channel *c, struct frame *frame, double departure)
{
    struct world *w = c->world;
    struct channel_view *v = &c->view;
    double arrival = departure + v->latency;
    v->bytes += frame->length;
    v->frames++;
    int lost = is_cut(v, departure);
    if (!lost && v->faulty)
        lost = loses(c) || draw(&c->random) < v->corrupt;
    if (w->view.observe)
        w->view.observe(lost ? LOST : LEFT, departure, v->number, 0, frame->bytes, frame->length);
    if (lost) {
        v->lost++;
        release(&w->pool, frame);
        return;
    }
    if (v->flip > 0 && draw(&c->random) < v->flip && has_lanes(frame)) {
        v->flipped++;
        frame = own(&w->pool, frame);
        uint32_t lanes = STACK + HOP_BYTES * (uint32_t)frame->bytes[HOPS];
        uint32_t at = lanes + draw_below(&c->random, frame->length - lanes);
        frame->bytes[at] ^= (uint8_t)(1 << draw_below(&c->random, 8));
    }
    if (v->faulty) {
        if (draw(&c->random) < v->reorder) {
            v->delayed++;
            arrival += draw(&c->random) * v->hold;
        }
        if (draw(&c->random) < v->duplicate) {
            v->duplicated++;
            frame->users++;
            deliver(w, arrival, c->target, (uint32_t)v->port, frame);
        }
    }
    deliver(w, arrival, c->target, (uint32_t)v->port, frame);
}

static double seconds_of(const struct channel *c, const struct frame *frame)
{
    return (double)(frame->length * UINT64_C(8)) / c->view.rate;
}

/* Return the next frame to leave: of the highest level, and urgent ones before all. NULL if none waits. */
static struct frame *next_frame(struct channel *c)
{
    if (!c->busy)
        return NULL;
    uint32_t number = (uint32_t)__builtin_ctz(c->busy);
    struct queue *queue = &c->queues[number];
    struct frame *frame = take(queue);
    c->waiting[priority_of(number)]--;
    if (!queue->waiting.count && !queue->turns)
        c->busy &= ~(1u << number);
    return frame;
}

/* Transmit a frame, and the next one when it has left. */
static int64_t send_next(void *subject, double detail)
{
    struct channel *c = subject;
    struct frame *frame = next_frame(c);
    c->sending = frame != NULL;
    if (frame) {
        double departure = c->world->events->now + seconds_of(c, frame);
        schedule(c->world->events, departure, send_next, c, detail);
        leave(c, frame, departure);
    }
    return 0;
}

/* Queue a frame, which is the channel's now; it arrives later, or never. */
static void transmit(struct channel *c, struct frame *frame)
{
    if (!c->view.queues) {
        leave(c, frame, c->world->events->now);
        return;
    }
    frame = own(&c->world->pool, frame);
    uint32_t number = queue_of(frame);
    if (!put(&c->queues[number], frame, c->view.fair != 0)) {
        c->view.queue_drops++;
        release(&c->world->pool, frame);
        return;
    }
    c->busy |= 1u << number;
    c->waiting[priority_of(number)]++;
    if (!c->sending)
        send_next(c, 0);
}

void channel_transmit(struct channel *c, const uint8_t *bytes, uint32_t length)
{
    transmit(c, new_frame(&c->world->pool, bytes, length));
}
