/* What a server offers (library.py): frames in, state, epochs. */

/* -- frames received */

/* Whether no switch sums what a worker sends. */
static int is_direct(const struct server *s, int64_t worker)
{
    return worker < s->workers && s->direct[worker];
}

/* Process the number of a child's frame, and request what is missing before it: from the neighbour on the link, or past
 * all switches, which remove SEQUENCED, from the worker. Returns whether it had come before. */
static int take_number_of(struct server *s, struct output *out, const struct contribution *c)
{
    int direct = is_direct(s, c->worker), count;
    int64_t child = direct ? s->child_of[c->worker] : child_of(c->frame), requests[GAPS];
    if (child >= s->children || !(direct || c->flags & SEQUENCED))
        return 0;
    struct arrivals arrivals = {s->asked + child * GAPS, s->newest[child], s->missing[child]};
    int copy = take_number(&arrivals, big16(c->frame + SEQUENCE), c->flags & REPAIR, direct ? s->window : 0, requests,
                           &count);
    s->newest[child] = arrivals.newest;
    s->missing[child] = arrivals.missing;
    for (int i = 0; i < count; i++)
        if (direct)
            request_contribution(s, out, c->worker, requests[i]);
        else
            request_sum(s, out, c, requests[i]);
    return copy;
}

/* Process a contribution of this epoch, with the usual flags. */
static void receive_sum(struct server *s, struct output *out, const struct contribution *c)
{
    s->tos = c->frame[TOS] & ~URGENT;
    int copy = take_number_of(s, out, c);
    if (s->finished[c->slot].fragment == c->fragment) {
        if (c->flags & SEQUENCED && (copy || c->flags & REPAIR))
            return;
        if (c->flags & SEQUENCED && s->replicates)
            repeat_result(s, out, s->replicated, c->slot);
        else
            answer_worker(s, out, c);
        return;
    }
    int64_t child = child_of(c->frame);
    int fits = child < s->children && s->sizes[child] == c->weight;
    if (s->all_single) {
        fits = c->worker < s->workers;
        child = fits ? s->child_of[c->worker] : EMPTY;
    }
    if (fits)
        add_sum(s, out, c, child);
    else
        s->counters.refused++;
}

/* Process a single contribution, or a total handed over. */
static void receive_bypassed(struct server *s, struct output *out, const struct contribution *c)
{
    struct sum *sum = &s->sums[c->slot];
    int total = c->weight == s->workers;
    if (!(c->flags & BYPASS) || c->worker >= s->workers || (c->weight != 1 && !total)) {
        s->counters.refused++;
        return;
    }
    if (s->verifies && c->weight == 1) {
        read_lanes(s->scratch, c->lanes, s->lanes);
        int right = check_single(&s->checks, s->scratch, c->fragment, c->worker);
        if (!right && !total) {
            s->counters.corrupt++;
            if (sum->doubted && sum->fragment == c->fragment)
                ask_for_singles(s, out, c->slot);
            return;
        }
        total = !right;
    }
    if (total)
        take_total(s, out, c);
    else
        keep_single(s, out, c);
}

/* Process a packet of another epoch, a question, a single, or a total handed over. */
static void receive_unusual_up(struct server *s, struct output *out, const struct contribution *c)
{
    int64_t epoch = big16(c->frame + EPOCH);
    if (is_newer(epoch, s->epoch, 16)) {
        s->counters.newer++;
        return;
    }
    if ((c->flags & (STALE | BYPASS)) == (STALE | BYPASS)) {
        if (epoch != s->epoch)
            s->counters.older++;
        else if (s->replicates || c->worker >= s->workers)
            s->counters.refused++;
        else
            repair_number(s, out, &s->unicast[c->worker], big16(c->frame + SEQUENCE));
        return;
    }
    if (epoch == s->epoch && c->flags & BYPASS && is_direct(s, c->worker))
        take_number_of(s, out, c);
    if (s->finished[c->slot].fragment == c->fragment) {
        answer_worker(s, out, c);
    } else if (epoch != s->epoch) {
        s->counters.older++;
    } else if (c->flags & STALE) {
        s->counters.stale++;
    } else {
        receive_bypassed(s, out, c);
    }
}

static void receive_at_server(struct server *s, const uint8_t *frame, int64_t length, double now, int internal,
                          struct output *out)
{
    int bare = length > HOPS && !internal && is_bare(frame);
    int64_t whole = bare ? length + 4 * s->lanes : length;
    if (length > HOPS && whole == STACK + 4 * s->lanes) {
        if (match(&s->requests, frame, bare) == PLAIN)
            repair_number(s, out, s->replicated, big16(frame + SEQUENCE));
        else
            s->counters.foreign++;
        return;
    }
    enum match belongs = FOREIGN;
    if (length > HOPS && whole == s->lanes_at + 4 * s->lanes && is_reduction(frame[REDUCTION]))
        belongs = match(&s->contributions, frame, bare);
    if (belongs == FOREIGN) {
        s->counters.foreign++;
        return;
    }
    int64_t fragment = big32(frame + FRAGMENT);
    struct contribution c = {
        .frame = frame,
        .lanes = bare ? s->zeros : frame + s->lanes_at,
        .fragment = fragment,
        .slot = fragment & (s->window - 1),
        .worker = big16(frame + WORKER),
        .weight = big16(frame + WEIGHT),
        .flags = frame[FLAGS],
        .code = frame[EXPONENT],
        .reduction = frame[REDUCTION],
        .bare = bare,
        .now = now,
    };
    s->counters.received++;
    if (belongs == PLAIN)
        receive_sum(s, out, &c);
    else
        receive_unusual_up(s, out, &c);
}

/* Process the first of n frames of `length` bytes, `stride` apart, of any content, while there is room for what one
 * can cause. `internal`: of this host's own worker, with lanes whatever their reduction. Returns how many were
 * processed. */
uint32_t server_receive(struct server *s, const uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                        double now, int internal, struct output *out)
{
    uint32_t i = 0;
    for (; i < n && room_left(out) >= (uint64_t)s->most_output; i++)
        receive_at_server(s, frames + i * stride, length, now, internal, out);
    return i;
}

/* As a flow. */
static uint32_t receive_sums(struct flow *flow, const uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                             double now, struct output *out)
{
    return server_receive((struct server *)flow, frames, n, length, stride, now, 0, out);
}

/* -- state */

/* Divide memory among the arrays; returns how many bytes they take. With NULL, it only counts. */
uint64_t server_layout(struct server *s, uint8_t *memory)
{
    uint8_t *at = memory;
    size_t slots = (size_t)s->window, lanes = (size_t)s->lanes;
    size_t singles = (size_t)s->most_singles;
    s->sent.size = 2 * s->window > 2 * GAPS ? 2 * s->window : 2 * GAPS;
    PLACE(&at, s->sent.fragments, s->sent.size);
    PLACE(&at, s->newest, s->children);
    PLACE(&at, s->missing, s->children);
    PLACE(&at, s->asked, s->children * GAPS);
    PLACE(&at, s->finished, slots);
    PLACE(&at, s->finished_lanes, 4 * slots * lanes);
    PLACE(&at, s->sums, slots);
    PLACE(&at, s->held, slots * (size_t)s->children);
    PLACE(&at, s->sum_lanes, slots * lanes);
    s->state_bytes = at - memory;
    PLACE(&at, s->since, slots);
    PLACE(&at, s->single_at, singles ? slots * (size_t)s->workers : 0);
    PLACE(&at, s->free_rows, singles);
    PLACE(&at, s->single_lanes, singles * lanes);
    PLACE(&at, s->order, slots);
    PLACE(&at, s->scratch, lanes);
    PLACE(&at, s->zeros, 4 * lanes);
    place_check_lanes(&s->checks, &at, s->verifies ? s->lanes : 0);
    return (uint64_t)(at - memory);
}

/* Begin, empty, with memory of zeros that is laid out. */
void server_restart(struct server *s)
{
    s->flow.receive = receive_sums;
    s->flow.most_output = s->most_output;
    s->flow.key = s->job << 8 | s->tree;
    s->flow.due = INFINITY;
    s->sent.next = 0;
    for (int64_t child = 0; child < s->children; child++) {
        struct arrivals arrivals = {s->asked + child * GAPS, 0, 0};
        restart_arrivals(&arrivals);
        s->newest[child] = arrivals.newest;
        s->missing[child] = arrivals.missing;
    }
    for (int64_t slot = 0; slot < s->window; slot++) {
        s->sums[slot].fragment = EMPTY;
        s->finished[slot].fragment = s->finished[slot].number = EMPTY;
    }
    s->free_singles = s->most_singles;
    for (int64_t i = 0; i < s->most_singles; i++)
        s->free_rows[i] = (uint32_t)(s->most_singles - i);
    if (s->verifies)
        check_restart(&s->checks, s->key, s->tree, s->workers, s->lanes);
}

/* Take over history, counters and priority of the server before, of another epoch. `same`: no other server can have
 * been at work in between. */
void server_adopt(struct server *s, const struct server *before, int same)
{
    s->counters = before->counters;
    s->flow.sent_bytes = before->flow.sent_bytes;
    s->tos = before->tos;
    memcpy(s->finished_lanes, before->finished_lanes, (size_t)s->window * lane_bytes(s));
    for (int64_t slot = 0; slot < s->window; slot++) {
        s->finished[slot] = before->finished[slot];
        s->finished[slot].number = EMPTY;
        s->finished[slot].own &= same != 0;
    }
}

/* Whether a slot has a result that is older than that of another, or the other has none. */
static int is_older(const struct server *s, int64_t slot, int64_t other)
{
    int64_t fragment = s->finished[slot].fragment, than = s->finished[other].fragment;
    return fragment != EMPTY && (than == EMPTY || is_newer(than, fragment, 32));
}

/* Fill `order` with the slots that have a result, oldest first. From the oldest on they nearly are in order. */
static void sort_history(struct server *s)
{
    int64_t oldest = 0;
    for (int64_t slot = 1; slot < s->window; slot++)
        oldest = is_older(s, slot, oldest) ? slot : oldest;
    s->filled = 0;
    for (int64_t i = 0; i < s->window; i++) {
        int64_t slot = (oldest + i) & (s->window - 1), at = s->filled;
        if (s->finished[slot].fragment == EMPTY)
            continue;
        for (; at && is_older(s, slot, s->order[at - 1]); at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = slot;
        s->filled++;
    }
}

/* Send the history to all under a new epoch, from the result number `first` on, as far as there is room: some workers
 * may have missed it. Their contributions would wait in the switches for those of others, who have the result and send
 * none. Returns the next one; -1 after the last. */
int64_t server_send_history(struct server *s, int64_t first, struct output *out)
{
    if (!first)
        sort_history(s);
    int64_t all = s->filled * s->to_all_count, i = first;
    for (; i < all && room_left(out); i++) {
        send_finished(s, out, &s->to_all[i / s->filled], s->order[i % s->filled], s->tos, SEQUENCED);
        s->counters.answered++;
    }
    return i < all ? i : -1;
}

/* Find the fragment that was opened first, and when that was. Returns its slot; EMPTY if none is open. */
int64_t server_oldest(const struct server *s, int64_t *fragment, double *since)
{
    int64_t oldest = EMPTY;
    for (int64_t slot = 0; slot < s->window; slot++)
        if (s->sums[slot].fragment != EMPTY && (oldest == EMPTY || s->since[slot] < s->since[oldest]))
            oldest = slot;
    if (oldest != EMPTY) {
        *fragment = s->sums[oldest].fragment;
        *since = s->since[oldest];
    }
    return oldest;
}

/* Write what tells states apart to `out`, times and counters left out, and return how many bytes that is. With NULL,
 * it only counts. */
uint64_t server_state(const struct server *s, uint8_t *out)
{
    int64_t numbers[] = {s->tos, s->sent.next};
    uint8_t *at = out;
    struct part {
        const void *from;
        size_t bytes;
    } parts[] = {{numbers, sizeof numbers}, {s->sent.fragments, (size_t)s->state_bytes}};
    uint64_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        if (out)
            memcpy(at + bytes, parts[i].from, parts[i].bytes);
        bytes += parts[i].bytes;
    }
    for (int64_t i = 0; s->most_singles && i < s->window * s->workers; i++) {
        if (!s->single_at[i])
            continue;
        if (out) {
            memcpy(at + bytes, &i, sizeof i);
            memcpy(at + bytes + sizeof i, s->single_lanes + (s->single_at[i] - 1) * s->lanes, lane_bytes(s));
        }
        bytes += sizeof i + lane_bytes(s);
    }
    return bytes;
}
