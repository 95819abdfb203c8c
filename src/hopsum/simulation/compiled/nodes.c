/* Switches and hosts: what they do with the frames that arrive. Compiled switches and the flows of hosts are called
 * here; for all else the world hands the frames to Python. */

/* As p4switch's control.h has it. */
struct batch_result {
    uint64_t count, bytes;
    const uint8_t *data;
    const uint64_t *offsets;
    const uint32_t *lengths;
    const uint16_t *ports;
};

enum { DOWN, COMPILED, PYTHON };

/* What Python sets of a node. */
struct node_view {
    /* Its number; its place in the order of names; whether it is a switch; and what does its work (above): a switch's
     * engine, or a host's agent, whose flows are compiled. */
    int64_t number, rank, is_switch, state;
    /* What Python does about it, as numbers for events_run: take frames; go on after a flow that has finished; run
     * timers; and take what a switch sent to ports without a link. 0: nothing. */
    int64_t takes, finishes, ticks, unlinked;
    /* A switch: its engine, and whether `unlinked` is also for steps without such frames. */
    void *engine;
    int (*process)(void *engine, uint32_t count, const uint16_t *ports, const uint64_t *offsets,
                   const uint32_t *lengths, const uint8_t *bytes, uint64_t now, uint32_t logs,
                   struct batch_result *result);
    void (*set_waiting)(void *engine, uint32_t port, const uint64_t *packets);
    int64_t always_unlinked;
    /* A host: whether it forwards, and whether its own frames go by plain routes as those of others do. */
    int64_t forwards, plain;
    /* Its flows; and when Python has something to do, by the host's clock. */
    struct flow **flows;
    int64_t flow_count;
    double others_due;
    /* Its clock showed `shown` at `set_at`, and runs at a pace. */
    double shown, set_at, pace;
};

struct way {
    int64_t key;
    struct channel *channel;
};

struct node {
    struct node_view view;
    struct world *world;
    /* By port; and of a host by default. */
    struct channel **out, *home;
    uint32_t ports;
    /* Depths of queues that the engine knows of, by port. */
    uint32_t (*reported)[LEVELS];
    /* By address; and by job << 8 | tree. */
    struct way *routes, *trees;
    uint32_t route_count, tree_count;
    /* When the next tick is planned. */
    int planned;
    double planned_at;
};

static void observe(struct node *node, int what, double time, const struct arrival *each)
{
    if (node->world->view.observe)
        node->world->view.observe(what, time, node->view.number, each->port, each->frame->bytes, each->frame->length);
}

static void observe_all(struct node *node, const struct arrivals *a)
{
    for (uint64_t i = 0; node->world->view.observe && i < a->count; i++)
        observe(node, ENTERED_DEAD, a->time, &a->frames[i]);
}

static int64_t hand_over(struct world *w, struct arrivals *a, uint64_t from, int64_t wanted)
{
    w->handed = a;
    w->taken = from;
    return wanted;
}

static struct channel *channel_at(const struct node *node, uint32_t port)
{
    return port < node->ports ? node->out[port] : NULL;
}

/* -- switches */

static void set_waiting(struct node *node, uint32_t port)
{
    uint64_t waiting[LEVELS];
    for (int i = 0; i < LEVELS; i++)
        waiting[i] = node->reported[port][i];
    node->view.set_waiting(node->view.engine, port, waiting);
}

/* Report the depths of the queues of its links to the engine. */
static void report_waiting(struct node *node)
{
    for (uint32_t port = 0; port < node->ports; port++) {
        const struct channel *c = node->out[port];
        if (!c || !memcmp(node->reported[port], c->waiting, sizeof c->waiting))
            continue;
        memcpy(node->reported[port], c->waiting, sizeof c->waiting);
        set_waiting(node, port);
    }
}

/* Run a frame through the engine; what it makes joins `made`. */
static void process(struct node *node, const struct arrival *each, double time)
{
    struct world *w = node->world;
    struct batch_result result;
    uint16_t port = (uint16_t)each->port;
    uint64_t offset = (uint64_t)(uintptr_t)each->frame->bytes;
    if (node->view.process(node->view.engine, 1, &port, &offset, &each->frame->length, NULL, (uint64_t)(time * 1e6), 0,
                           &result))
        resized(NULL, SIZE_MAX / 2, 1); /* ends the process: the engine had no memory */
    if (w->made_count + result.count > w->made_room) {
        w->made_room = 2 * (w->made_count + result.count);
        RESIZE(w->made, w->made_room);
    }
    for (uint64_t i = 0; i < result.count; i++) {
        struct frame *frame = new_frame(&w->pool, result.data + result.offsets[i], result.lengths[i]);
        w->made[w->made_count++] = (struct arrival){result.ports[i], frame};
    }
}

/* Run frames that arrive at once through the engine, one after the other: those before a frame are in the queues. */
static void process_all(struct node *node, const struct arrivals *a)
{
    struct world *w = node->world;
    for (uint64_t i = 0; i < a->count; i++) {
        uint64_t before = w->made_count;
        observe(node, ENTERED, a->time, &a->frames[i]);
        process(node, &a->frames[i], a->time);
        for (uint64_t m = before; m < w->made_count && i + 1 < a->count; m++) {
            uint32_t port = w->made[m].port;
            if (channel_at(node, port)) {
                node->reported[port][priority_of(queue_of(w->made[m].frame))]++;
                set_waiting(node, port);
            }
        }
        observe(node, HANDLED, a->time, &a->frames[i]);
    }
}

static int64_t arrive_at_switch(struct node *node, struct arrivals *a)
{
    struct world *w = node->world;
    if (node->view.state == DOWN) {
        observe_all(node, a);
        drop_arrivals(w, a);
        return 0;
    }
    if (node->view.state == PYTHON)
        return hand_over(w, a, 0, node->view.takes);
    w->made_count = 0;
    report_waiting(node);
    process_all(node, a);
    for (uint64_t i = 0; i < a->count; i++)
        release(&w->pool, a->frames[i].frame);
    a->count = 0;
    for (uint64_t i = 0; i < w->made_count; i++) {
        struct channel *c = channel_at(node, w->made[i].port);
        if (c)
            transmit(c, w->made[i].frame);
        else
            add_arrival(a, w->made[i].port, w->made[i].frame);
    }
    if (node->view.unlinked && (a->count || node->view.always_unlinked))
        return hand_over(w, a, 0, node->view.unlinked);
    drop_arrivals(w, a);
    return 0;
}

/* -- hosts */

static struct channel *way_of(const struct way *ways, uint32_t count, int64_t key)
{
    for (uint32_t i = 0; i < count; i++)
        if (ways[i].key == key)
            return ways[i].channel;
    return NULL;
}

static struct channel *route_of(const struct node *host, const uint8_t *bytes)
{
    return way_of(host->routes, host->route_count, big32(bytes + DESTINATION_IP));
}

/* Send a frame of this host. The packets of a job leave by the link of their tree, regardless of plain routes. */
static void send(struct node *host, const uint8_t *bytes, uint32_t length, int own)
{
    struct channel *c = NULL;
    if (host->route_count)
        c = own ? way_of(host->trees, host->tree_count, key_of(bytes)) : route_of(host, bytes);
    channel_transmit(c ? c : host->home, bytes, length);
}

/* Send n frames of one kind; `bytes`: one behind the other. */
void host_send(struct node *host, const uint8_t *bytes, uint64_t n, uint32_t length, uint64_t stride, int hopsum)
{
    for (uint64_t i = 0; i < n; i++)
        send(host, bytes + i * stride, length, !host->route_count || (!host->view.plain && hopsum));
}

/* Forward frames for others, unchanged; keep the rest. */
static void pass_on_frames(struct node *host, struct arrivals *a)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        struct frame *frame = a->frames[i].frame;
        struct channel *c = frame->length >= DESTINATION_IP + IP_BYTES ? route_of(host, frame->bytes) : NULL;
        if (c)
            transmit(c, frame);
        else
            a->frames[kept++] = a->frames[i];
    }
    a->count = kept;
}

static double clock_at(const struct node_view *v, double time)
{
    return v->shown + (time - v->set_at) * v->pace;
}

/* Return the time of a reading of the clock: it does not show less then, by rounding. */
static double time_of(const struct node_view *v, double shown)
{
    double time = v->set_at + (shown - v->shown) / v->pace;
    while (clock_at(v, time) < shown)
        time = nextafter(time, INFINITY);
    return time;
}

static double due_at(const struct node_view *v)
{
    double due = v->others_due;
    for (int64_t i = 0; i < v->flow_count; i++) {
        struct flow *flow = v->flows[i];
        if (flow->publish)
            flow->publish(flow);
        due = flow->due < due ? flow->due : due;
    }
    return due;
}

static int64_t tick(void *subject, double planned);

/* Schedule the host's next tick, unless an earlier one is planned. */
void host_plan(struct node *host, double deadline)
{
    if (host->planned && deadline >= host->planned_at)
        return;
    host->planned = 1;
    host->planned_at = deadline;
    schedule(host->world->events, deadline, tick, host, deadline);
}

static void plan_flows(struct node *host)
{
    double due = due_at(&host->view);
    if (due < INFINITY)
        host_plan(host, time_of(&host->view, due));
}

/* Send what a flow has made. */
static void send_made(struct node *host, struct flow *flow)
{
    struct output *out = host->world->output;
    for (uint64_t i = 0; i < out->made; i++) {
        send(host, out->frames + i * out->stride, out->lengths[i], !host->view.plain);
        flow->sent_bytes += out->lengths[i];
    }
    out->made = 0;
}

/* Let a flow deliver what waits inside it: it is due at once as long as something does. */
static void run_on(struct node *host, struct flow *flow, double now)
{
    while (flow->due == -INFINITY) {
        if (host->world->output->made)
            send_made(host, flow);
        flow->tick(flow, now, host->world->output);
    }
}

/* Return the flow that takes all these frames, NULL if there is none. */
static struct flow *flow_of(const struct node *host, const struct arrivals *a)
{
    int64_t key = -1;
    for (uint64_t i = 0; i < a->count; i++) {
        const struct frame *frame = a->frames[i].frame;
        if (frame->length < STACK || frame->length > FRAME_BYTES || (i && key_of(frame->bytes) != key))
            return NULL;
        key = key_of(frame->bytes);
    }
    for (int64_t i = 0; i < host->view.flow_count; i++)
        if (host->view.flows[i]->key == key)
            return host->view.flows[i];
    return NULL;
}

/* Let a flow take frames i to j, of one length. */
static void run_flow(struct node *host, struct flow *flow, const struct arrivals *a, uint64_t i, uint64_t j)
{
    struct world *w = host->world;
    double now = clock_at(&host->view, w->events->now);
    uint32_t length = a->frames[i].frame->length;
    const uint8_t *frames = a->frames[i].frame->bytes;
    if (j - i > 1) {
        if (w->rows_room < (j - i) * FRAME_BYTES) {
            w->rows_room = 2 * (j - i) * FRAME_BYTES;
            RESIZE(w->rows, w->rows_room);
        }
        for (uint64_t k = i; k < j; k++)
            memcpy(w->rows + (k - i) * FRAME_BYTES, a->frames[k].frame->bytes, length);
        frames = w->rows;
    }
    w->output->made = 0;
    for (uint32_t taken = 0, n = (uint32_t)(j - i); taken < n;) {
        if (w->output->made)
            send_made(host, flow);
        taken += flow->receive(flow, frames + (uint64_t)taken * FRAME_BYTES, n - taken, length, FRAME_BYTES, now,
                               w->output);
        run_on(host, flow, now);
    }
}

static int64_t arrive_at_flows(struct node *host, struct arrivals *a)
{
    struct flow *flow = flow_of(host, a);
    if (!flow)
        return hand_over(host->world, a, 0, host->view.takes);
    for (uint64_t i = 0, j; i < a->count; i = j) {
        for (j = i + 1; j < a->count && a->frames[j].frame->length == a->frames[i].frame->length; j++) {
        }
        run_flow(host, flow, a, i, j);
        if (flow->finished) {
            host->world->view.finished = flow->key;
            return hand_over(host->world, a, j, host->view.finishes);
        }
        send_made(host, flow);
    }
    drop_arrivals(host->world, a);
    plan_flows(host);
    return 0;
}

static int64_t arrive_at_host(struct node *host, struct arrivals *a)
{
    observe_all(host, a);
    if (host->view.forwards)
        pass_on_frames(host, a);
    if (host->view.state == DOWN || !a->count) {
        drop_arrivals(host->world, a);
        return 0;
    }
    if (host->view.state == PYTHON)
        return hand_over(host->world, a, 0, host->view.takes);
    return arrive_at_flows(host, a);
}

/* Run the timers that are due at a host. */
static int64_t tick(void *subject, double planned)
{
    struct node *host = subject;
    struct node_view *v = &host->view;
    double time = host->world->events->now;
    if (!host->planned || host->planned_at != planned)
        return 0;
    host->planned = 0;
    if (v->state == DOWN)
        return 0;
    if (v->state == PYTHON)
        return v->ticks;
    double now = clock_at(v, time), due = due_at(v);
    struct flow *flow = NULL;
    for (int64_t i = 0; i < v->flow_count; i++)
        if (v->flows[i]->due <= now) {
            if (flow) /* they take turns to send */
                return v->ticks;
            flow = v->flows[i];
        }
    if (v->others_due <= now)
        return v->ticks;
    if (flow && time_of(v, due) <= time) {
        host->world->output->made = 0;
        flow->tick(flow, now, host->world->output);
        run_on(host, flow, now);
        if (flow->finished) {
            host->world->view.finished = flow->key;
            return hand_over(host->world, NULL, 0, v->finishes);
        }
        send_made(host, flow);
    }
    plan_flows(host);
    return 0;
}

/* -- the world */

static int64_t arrive(void *subject, double detail)
{
    struct arrivals *a = subject;
    struct node *node = a->node;
    (void)detail;
    take_pending(node->world, a);
    node->world->view.packet_hops += a->count;
    return node->view.is_switch ? arrive_at_switch(node, a) : arrive_at_host(node, a);
}

/* Give back the frames that were handed to Python. */
void world_taken(struct world *w)
{
    if (w->handed)
        drop_arrivals(w, w->handed);
    w->handed = NULL;
}

uint64_t world_left(const struct world *w)
{
    return w->handed ? w->handed->count - w->taken : 0;
}

/* Describe the frames that Python has to take, by arrays with room for them. */
void world_describe(const struct world *w, uint64_t *ports, uint64_t *addresses, uint64_t *lengths)
{
    for (uint64_t i = w->taken; i < w->handed->count; i++) {
        *ports++ = w->handed->frames[i].port;
        *addresses++ = (uint64_t)(uintptr_t)w->handed->frames[i].frame->bytes;
        *lengths++ = w->handed->frames[i].frame->length;
    }
}

void world_deliver(struct world *w, double time, struct node *node, uint32_t port, const uint8_t *bytes,
                   uint32_t length)
{
    deliver(w, time, node, port, new_frame(&w->pool, bytes, length));
}

/* Let an engine know again what it has been told about queues. */
void switch_forget(struct node *node)
{
    memset(node->reported, 0, node->ports * sizeof *node->reported);
}

void host_unplan(struct node *host)
{
    host->planned = 0;
}

static void add_way(struct way **ways, uint32_t *count, int64_t key, struct channel *channel)
{
    RESIZE(*ways, *count + 1);
    (*ways)[(*count)++] = (struct way){key, channel};
}

void host_add_route(struct node *host, int64_t address, struct channel *channel)
{
    add_way(&host->routes, &host->route_count, address, channel);
}

/* Forget the links of the trees of a job. */
void host_forget_trees(struct node *host, int64_t job)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < host->tree_count; i++)
        if (host->trees[i].key >> 8 != job)
            host->trees[kept++] = host->trees[i];
    host->tree_count = kept;
}

void host_add_tree(struct node *host, int64_t key, struct channel *channel)
{
    add_way(&host->trees, &host->tree_count, key, channel);
}

/* Nodes and channels; the caller sets what is in their views. `home`: whether frames leave by it unless another way
 * is known. */
void world_use(struct world *w, struct output *output)
{
    w->output = output;
}

struct world *world_create(struct events *events, struct output *output)
{
    struct world *w = memset(resized(NULL, 1, sizeof *w), 0, sizeof *w);
    w->events = events;
    w->output = output;
    make_places(w);
    return w;
}

struct node *node_create(struct world *w, uint32_t ports)
{
    struct node *node = memset(resized(NULL, 1, sizeof *node), 0, sizeof *node);
    node->world = w;
    node->ports = ports;
    node->view.pace = 1;
    node->view.others_due = INFINITY;
    node->out = memset(resized(NULL, ports + 1, sizeof *node->out), 0, (ports + 1) * sizeof *node->out);
    node->reported = memset(resized(NULL, ports + 1, sizeof *node->reported), 0, (ports + 1) * sizeof *node->reported);
    return node;
}

struct channel *channel_create(struct node *from, uint32_t port, struct node *to, int home)
{
    struct channel *c = memset(resized(NULL, 1, sizeof *c), 0, sizeof *c);
    c->world = from->world;
    c->target = to;
    c->view.random = c->random.state;
    c->view.waiting = c->waiting;
    from->out[port] = c;
    if (home)
        from->home = c;
    return c;
}

void channel_free(struct channel *c)
{
    for (int i = 0; i <= LEVELS; i++)
        empty(&c->queues[i]);
    free(c);
}

void node_free(struct node *node)
{
    free(node->out);
    free(node->reported);
    free(node->routes);
    free(node->trees);
    free(node);
}

void world_free(struct world *w)
{
    world_taken(w);
    for (uint64_t i = 0; i < w->pending_room; i++)
        for (struct arrivals *a; (a = w->pending[i]);) {
            w->pending[i] = a->next;
            drop_arrivals(w, a);
        }
    for (struct arrivals *a; (a = w->unused); free(a)) {
        w->unused = a->next;
        free(a->frames);
    }
    for (struct frame *frame; (frame = w->pool.free); free(frame))
        w->pool.free = frame->next;
    free(w->pending);
    free(w->made);
    free(w->rows);
    free(w);
}
