/* A worker's stream and the server of a tree with its root at the same host (docs/protocol.md, Rooted trees). What one
 * sends to the other does not cross the network: it waits in a queue, with lanes whatever its reduction. A queue that
 * is full loses frames, as any link does. */

struct root {
    struct flow flow;
    struct stream *stream;
    struct server *server;
    /* This host's MAC address; its worker's number, and its child number at the server. */
    const uint8_t *address;
    int64_t worker, child;
    /* Frames of the stream, and of the server; the first `up_at` and `down_at` of them are delivered. */
    struct output *up;
    struct output *down;
    uint64_t up_at, down_at;
};

static uint8_t *row_of(const struct output *queue, uint64_t row)
{
    return queue->frames + row * queue->stride;
}

/* Give the stream a frame of the server; what it sends then joins the queue. */
static void deliver_down(struct root *r, const uint8_t *frame, uint32_t length, double now)
{
    struct output *up = r->up;
    if (room_left(up) < (uint64_t)r->stream->most_output && r->up_at) {
        uint64_t waiting = up->made - r->up_at;
        memmove(up->frames, row_of(up, r->up_at), waiting * up->stride);
        memmove(up->lengths, up->lengths + r->up_at, waiting * sizeof *up->lengths);
        up->made = waiting;
        r->up_at = 0;
    }
    stream_receive(r->stream, frame, 1, length, up->stride, now, 1, up);
}

/* Send a frame of the server on: results for others, and those for all. */
static void pass_on(const struct root *r, const uint8_t *frame, struct output *out)
{
    int64_t head = STACK + (int64_t)HOP_BYTES * frame[HOPS];
    uint8_t *passed = begin_frame(out, frame, head);
    memcpy(passed + head, frame + head, (size_t)(4 * r->server->lanes));
    finish_frame(out, passed, head, r->server->lanes);
}

/* Let stream and server take what the other has sent, until nothing is left or `out` has no room for what is to be
 * sent. Returns whether nothing is left. */
int root_exchange(struct root *r, double now, struct output *out)
{
    for (;;) {
        if (r->down_at < r->down->made) {
            const uint8_t *frame = row_of(r->down, r->down_at);
            int ours = !memcmp(frame, r->address, MAC_BYTES);
            if (!ours && !room_left(out))
                return 0;
            uint32_t length = r->down->lengths[r->down_at++];
            if (!ours)
                pass_on(r, frame, out);
            if (ours || frame[0] & 1)
                deliver_down(r, frame, length, now);
            continue;
        }
        r->down_at = r->down->made = 0;
        if (r->up_at == r->up->made) {
            r->up_at = r->up->made = 0;
            return 1;
        }
        const uint8_t *frame = row_of(r->up, r->up_at);
        server_receive(r->server, frame, 1, r->up->lengths[r->up_at++], r->up->stride, now, 1, r->down);
    }
}

/* Whether a frame from the network claims this worker's part of a sum, which comes from this host alone. Totals of all
 * workers do too: none are handed over to roots. */
static int is_claim(const struct root *r, const uint8_t *frame, uint32_t length)
{
    if (length < STACK + HOP_BYTES || kind_of(frame) != CONTRIBUTION)
        return 0;
    if (frame[FLAGS] & BYPASS)
        return big16(frame + WORKER) == r->worker || big16(frame + WEIGHT) == r->server->workers;
    return child_of(frame) == r->child;
}

/* Take in frames from the network, of any content, which are for the server; see server_receive. */
uint32_t root_receive(struct root *r, const uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride, double now,
                      struct output *out)
{
    uint32_t i = 0;
    for (; root_exchange(r, now, out) && i < n; i++) {
        const uint8_t *frame = frames + i * stride;
        if (is_claim(r, frame, length))
            r->stream->counters->foreign++;
        else
            server_receive(r->server, frame, 1, length, stride, now, 0, r->down);
    }
    return i;
}

/* -- as a flow */

static void publish_root(struct flow *flow)
{
    struct root *r = (struct root *)flow;
    int waits = r->down_at < r->down->made || r->up_at < r->up->made;
    publish(&r->stream->flow);
    r->flow.due = waits ? -INFINITY : r->stream->flow.due;
    r->flow.finished = r->stream->flow.finished;
}

static uint32_t receive_at_root(struct flow *flow, const uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                                double now, struct output *out)
{
    struct root *r = (struct root *)flow;
    uint32_t taken = root_receive(r, frames, n, length, stride, now, out);
    answer_call(r->stream, now);
    publish_root(flow);
    return taken;
}

static void tick_at_root(struct flow *flow, double now, struct output *out)
{
    struct root *r = (struct root *)flow;
    if (root_exchange(r, now, out)) {
        stream_tick(r->stream, now, r->up);
        root_exchange(r, now, out);
    }
    answer_call(r->stream, now);
    publish_root(flow);
}

static int call_at_root(struct flow *flow, double now, struct output *out)
{
    struct root *r = (struct root *)flow;
    int taken = root_exchange(r, now, out) && begin_call(r->stream, now, r->up);
    if (taken)
        root_exchange(r, now, out);
    answer_call(r->stream, now);
    publish_root(flow);
    return taken;
}

/* Go on as a flow, until Python has something to do; see stream_enter. Results for other workers are awaited: none may
 * wait for one another. */
void root_enter(struct root *r, struct calls *calls)
{
    stream_enter(r->stream, calls);
    r->flow.receive = receive_at_root;
    r->flow.tick = tick_at_root;
    r->flow.publish = publish_root;
    r->flow.call = calls ? call_at_root : NULL;
    r->flow.key = r->server->flow.key;
    r->flow.most_output = 1;
    r->flow.deferrable = r->flow.sent_bytes = 0;
    publish_root(&r->flow);
}
