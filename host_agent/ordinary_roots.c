/* A worker's stream and the server of a tree with its root at the same host, as one flow: the server's
 * results are handed to the stream, and the stream's next fragments to the server, without a packet; see
 * root_worker.py. What is not ordinary there is left, whole and in order. */

struct root {
    struct flow flow;
    /* The stream: NULL if none of its fragments can come back; the server, and the worker's child number there. */
    struct stream *stream;
    struct server *server;
    int64_t child;
    /* Frames with lanes, one behind the other, which are left to Python: the stream's, which are next at the
     * server, then the server's, which are next at the stream. Room for a window, and for two. */
    uint8_t *contributions, *results;
    int64_t contributions_left, results_left;
};

/* Say what the flow waits for. */
static void await(struct root *r)
{
    r->flow.due = r->stream ? r->stream->flow.due : INFINITY;
    r->flow.finished = r->contributions_left || r->results_left || (r->stream && r->stream->flow.finished);
}

/* Hand over the results in `out`, which is as of `process` and has `made` frames with lanes, and what the
 * stream sends then, until there is nothing left. Returns how many results there are then. */
static uint32_t hand_over(struct root *r, uint8_t *out, uint64_t stride, uint32_t made, uint32_t room, double now)
{
    struct server *server = r->server;
    uint64_t length = (uint64_t)(server->prefix_bytes + 4 * server->lanes), taken = 0;
    uint32_t window = (uint32_t)server->window;
    while (taken < made && !r->contributions_left) {
        uint32_t sent = 0;
        uint64_t pitch = r->stream ? (uint64_t)(r->stream->prefix_bytes + 4 * r->stream->lanes) : 0;
        uint32_t more = !r->stream ? 0
            : take_results(r->stream, out + taken * stride, made - (uint32_t)taken, stride, now, r->contributions,
                           pitch, window, &sent);
        if (!more)
            break;
        taken += more;
        answer(r->stream, now);
        if (!sent)
            continue;
        if (made + sent > room || made - taken + sent > 2 * window
            || !ordinary_look_at_sums(server, r->contributions, sent, pitch))
            r->contributions_left = sent;
        else
            made += ordinary_take_sums(server, r->contributions, sent, pitch, now, out + made * stride, stride);
    }
    for (uint32_t i = (uint32_t)taken; i < made; i++)
        memcpy(r->results + (uint64_t)r->results_left++ * length, out + i * stride, (size_t)length);
    return made;
}

/* `process`, see flow.h: of contributions. The worker's own never come from the network. */
uint32_t ordinary_roots(struct flow *flow, uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                        double now, uint8_t *out, uint32_t *out_lengths, uint32_t room, uint32_t *made)
{
    struct root *r = (struct root *)flow;
    struct server *server = r->server;
    if (r->contributions_left || r->results_left || length < STACK + HOP_BYTES || child_of(frames) == r->child)
        return 0;
    uint32_t taken = take_sums(server, frames, n, length, stride, now, out, room, made);
    *made = hand_over(r, out, stride, *made, room, now);
    finish(out, *made, stride, out_lengths, server->prefix_bytes + 4 * server->lanes, server->lanes, BARE_DOWN);
    await(r);
    return taken;
}

/* `call`, see flow.h: the server is the first to take its fragments in. */
int root_call(struct flow *flow, double now, uint8_t *out, uint64_t stride, uint32_t *out_lengths, uint32_t room,
              uint32_t *made)
{
    struct root *r = (struct root *)flow;
    struct server *server = r->server;
    uint64_t pitch = (uint64_t)(r->stream->prefix_bytes + 4 * r->stream->lanes);
    uint32_t window = (uint32_t)server->window, sent = 0;
    if (r->contributions_left || r->results_left || (uint64_t)(server->prefix_bytes + 4 * server->lanes) > stride
        || !begin_call(r->stream, now, r->contributions, pitch, room < window ? room : window, &sent))
        return 0;
    *made = 0;
    if (ordinary_look_at_sums(server, r->contributions, sent, pitch))
        *made = ordinary_take_sums(server, r->contributions, sent, pitch, now, out, stride);
    else
        r->contributions_left = sent;
    *made = hand_over(r, out, stride, *made, room, now);
    finish(out, *made, stride, out_lengths, server->prefix_bytes + 4 * server->lanes, server->lanes, BARE_DOWN);
    await(r);
    return 1;
}

/* `expire`, see flow.h: of the stream's timers. */
int ordinary_roots_expire(struct flow *flow, double now)
{
    struct root *r = (struct root *)flow;
    int later = r->stream && ordinary_expire(&r->stream->flow, now);
    await(r);
    return later;
}

/* Begin as a flow, of the stream and server that are set. */
void ordinary_roots_enter(struct root *r)
{
    r->flow.key = r->server->flow.key;
    await(r);
}
