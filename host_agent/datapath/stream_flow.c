/* A worker's stream as a flow. */

static void publish(struct flow *flow)
{
    struct stream *s = (struct stream *)flow;
    s->flow.due = stream_deadline(s);
    s->flow.deferrable = stream_deferrable(s);
    s->flow.finished = s->news;
}

static uint32_t receive_in_flow(struct flow *flow, const uint8_t *frames, uint32_t n, uint32_t length,
                                uint64_t stride, double now, struct output *out)
{
    struct stream *s = (struct stream *)flow;
    uint32_t taken = stream_receive(s, frames, n, length, stride, now, 0, out);
    answer_call(s, now);
    publish(flow);
    return taken;
}

static void tick_in_flow(struct flow *flow, double now, struct output *out)
{
    struct stream *s = (struct stream *)flow;
    stream_tick(s, now, out);
    publish(flow);
}

static int call_in_flow(struct flow *flow, double now, struct output *out)
{
    struct stream *s = (struct stream *)flow;
    int taken = begin_call(s, now, out);
    publish(flow);
    return taken;
}

/* Go on as a flow, until Python has something to do. `calls`: to take from a process, or NULL. The ring of segments
 * has room for one more. */
void stream_enter(struct stream *s, struct calls *calls)
{
    s->calls = calls;
    s->flow.receive = receive_in_flow;
    s->flow.tick = tick_in_flow;
    s->flow.publish = publish;
    s->flow.call = calls ? call_in_flow : NULL;
    s->flow.most_output = s->most_output;
    s->flow.sent_bytes = 0;
    publish(&s->flow);
}
