/* The parameter server of one (job, tree): frames in, frames out. It completes sums and keeps a window of results;
 * it has no timers of its own. The rules are in docs/protocol.md, A server.
 *
 * Results carry the IP ToS byte of the sums that come in: their job's priority. Per slot it holds the fragment that is
 * being summed (which children's sums are in, and singles of workers that bypassed the switches) and the last one
 * finished, its history. Check lanes, where a job has them, are verified when a sum is complete. If they show it to be
 * wrong, the slot is in doubt: the workers are asked for their single contributions, which each show by themselves
 * that they are right; a sum of these that does not fit has wrapped around. */

/* Counters, in packets unless they say otherwise. */
struct server_counters {
    int64_t received;      /* contributions of its job and tree */
    int64_t sums;          /* complete sums of a child's subtree accepted */
    int64_t singles;       /* bypassed contributions of one worker accepted */
    int64_t repeats;       /* duplicate or covered contributions */
    int64_t handed_over;   /* totals handed over by workers */
    int64_t results;       /* fragments finished */
    int64_t result_frames; /* result frames sent at their completion */
    int64_t answered;      /* packets of finished fragments answered from the history */
    int64_t requests;      /* sums requested again: lost on the way from the neighbour */
    int64_t repaired;      /* results retransmitted on a neighbour's request: lost on the link to it */
    int64_t stale;         /* questions about fragments that are not finished: ignored */
    int64_t older;         /* of an older epoch, or of a fragment older than the history: ignored */
    int64_t newer;         /* of an epoch this server has not adopted yet: dropped */
    int64_t refused;       /* invalid: unknown child or worker, wrong weight, a total outside the window; and singles
                            * for which there was no room */
    int64_t foreign;       /* frames that are not contributions of this job and tree */
    int64_t overflowed;    /* fragments finished whose sum wrapped around */
    int64_t corrupt;       /* sums, totals and single contributions that check lanes show to be altered or forged */
    int64_t asked;         /* questions to workers for single contributions to such sums */
};

/* Frames to send: the constant part of one kind to one destination, with ToS byte 0. */
struct server_form {
    const uint8_t *prefix;
    int64_t bytes;
};

/* A fragment that is being summed. `covered`: of how many workers contributions are in; `singles`: of these, how many
 * are single. `doubted`: check lanes have shown its sum to be wrong, so only singles count. `started`: its lanes are
 * the sum of the children whose sums are in. */
struct sum {
    int64_t fragment, covered, singles;
    uint8_t doubted, started, flags, code, reduction;
};

/* The last finished fragment of a slot. `number`: under which it was sent to all in this epoch, EMPTY if it was not.
 * `own`: summed here, not handed over. */
struct finished {
    int64_t fragment, number;
    uint8_t own, code, flags, reduction;
};

struct server {
    struct flow flow;
    struct server_counters counters;
    /* From the plan. `lanes_at`: where a contribution's lanes begin; `most_singles`: room for bypassed contributions of
     * a tree whose switches sum, at least `workers`; `most_output`: frames that one received frame can cause. */
    int64_t job, tree, epoch, window, lanes, workers, children, lanes_at, most_singles, most_output;
    /* Whether every contribution is a single (no switch sums), switches replicate results, there are check lanes. */
    int64_t all_single, replicates, verifies;
    /* Contributions, and requests of neighbours. */
    struct matcher contributions;
    struct matcher requests;
    /* Results: replicated, by worker, and what is sent to all when a fragment is finished; questions by worker. */
    const struct server_form *replicated, *unicast, *questions, *to_all;
    int64_t to_all_count;
    /* By child: how many workers it covers; by worker: its child, and whether no switch sums what it sends. */
    const int64_t *sizes, *child_of, *direct;
    const uint8_t *key;
    /* The IP ToS byte of results, without URGENT. */
    int64_t tos;
    struct sent_log sent;
    /* By child: see struct arrivals. */
    int64_t *newest, *missing, *asked;
    /* By slot; `held` by slot and child: whether its sum is in. */
    struct finished *finished;
    uint8_t *finished_lanes;
    struct sum *sums;
    uint8_t *held;
    int32_t *sum_lanes;
    /* Bytes of the arrays up to here. What follows tells no states apart, but for singles. */
    int64_t state_bytes;
    double *since;
    /* Singles: `single_at` by slot and worker: the number of a row of `single_lanes`, from 1; 0 if there is none. Rows
     * that are free are the first `free_singles` of `free_rows`. */
    uint32_t *single_at, *free_rows;
    int32_t *single_lanes;
    int64_t free_singles;
    /* Slots with a result, oldest first, while the history is sent. */
    int64_t *order;
    int64_t filled;
    int32_t *scratch;
    uint8_t *zeros;
    struct check_lanes checks;
};

/* A received contribution. */
struct contribution {
    const uint8_t *frame, *lanes;
    int64_t fragment, slot, worker, weight;
    uint8_t flags, code, reduction;
    int bare;
    double now;
};

static size_t lane_bytes(const struct server *s)
{
    return (size_t)(4 * s->lanes);
}

static int32_t *sum_lanes(const struct server *s, int64_t slot)
{
    return s->sum_lanes + slot * s->lanes;
}

static uint8_t *finished_lanes(const struct server *s, int64_t slot)
{
    return s->finished_lanes + (size_t)slot * lane_bytes(s);
}

static int newer_fragment(int64_t a, int64_t b)
{
    return b == EMPTY || is_newer(a, b, 32);
}

/* -- frames to send */

/* Set the IP ToS byte of a frame (RFC 1624). */
static void put_tos(uint8_t *frame, int64_t tos)
{
    uint32_t sum = (~(uint32_t)big16(frame + CHECKSUM) & 0xFFFF) + (uint32_t)(0xFF - frame[TOS]) + (uint32_t)tos;
    sum += 0xFF00; /* the complement of the byte in front of it, and this byte, which stays */
    sum = (sum & 0xFFFF) + (sum >> 16);
    put16(frame + CHECKSUM, ~((sum & 0xFFFF) + (sum >> 16)));
    frame[TOS] = (uint8_t)tos;
}

/* Compute the IPv4 checksum of a frame whatever it was. */
static void put_checksum(uint8_t *frame)
{
    uint32_t sum = 0;
    put16(frame + CHECKSUM, 0);
    for (int at = IPV4; at < IPV4 + IPV4_BYTES; at += 2)
        sum += big16(frame + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    put16(frame + CHECKSUM, ~((sum & 0xFFFF) + (sum >> 16)));
}

/* Send the last finished fragment of a slot; with `flags` other than 0, under its number. */
static void send_finished(struct server *s, struct output *out, const struct server_form *form, int64_t slot,
                          int64_t tos, uint8_t flags)
{
    struct finished *f = &s->finished[slot];
    uint8_t *frame = begin_frame(out, form->prefix, form->bytes);
    put_tos(frame, tos);
    put32(frame + FRAGMENT, (uint32_t)f->fragment);
    frame[EXPONENT] = f->code;
    frame[FLAGS] = f->flags;
    frame[REDUCTION] = f->reduction;
    if (flags) {
        if (f->number == EMPTY) /* finished in an earlier epoch */
            f->number = next_number(&s->sent, f->fragment);
        set_number(frame, f->number, flags);
    }
    memcpy(frame + form->bytes, finished_lanes(s, slot), lane_bytes(s));
    finish_frame(out, frame, form->bytes, s->lanes);
}

/* Retransmit a finished fragment, urgently; switches that keep replicated ones drop them. */
static void repeat_result(struct server *s, struct output *out, const struct server_form *form, int64_t slot)
{
    send_finished(s, out, form, slot, s->tos | URGENT, SEQUENCED | REPAIR);
    s->counters.repaired++;
}

/* Retransmit the result that was sent under a number, if the history has it. */
static void repair_number(struct server *s, struct output *out, const struct server_form *form, int64_t number)
{
    int64_t fragment = find_number(&s->sent, number), slot = fragment & (s->window - 1);
    if (fragment != UNKNOWN && s->finished[slot].fragment == fragment)
        repeat_result(s, out, form, slot);
}

/* Answer a request for a finished fragment, under this server's epoch and paths. */
static void answer_worker(struct server *s, struct output *out, const struct contribution *c)
{
    if (c->worker >= s->workers) {
        s->counters.refused++;
        return;
    }
    send_finished(s, out, &s->unicast[c->worker], c->slot, s->tos, s->replicates ? 0 : SEQUENCED);
    s->counters.answered++;
}

/* Request a number from the neighbour that a frame came from: a copy of the frame, sent back. It has lanes, whatever
 * the frame has. */
static void request_sum(struct server *s, struct output *out, const struct contribution *c, int64_t number)
{
    uint8_t *frame = begin_frame(out, c->frame, s->lanes_at);
    memcpy(frame, c->frame + MAC_BYTES, MAC_BYTES);
    memcpy(frame + MAC_BYTES, c->frame, MAC_BYTES);
    memcpy(frame + SOURCE_IP, c->frame + DESTINATION_IP, IP_BYTES);
    memcpy(frame + DESTINATION_IP, c->frame + SOURCE_IP, IP_BYTES);
    frame[KIND] = (uint8_t)((frame[KIND] & 0xF0) | REQUEST);
    frame[FLAGS] = 0;
    frame[REDUCTION] = SUM;
    set_number(frame, number, SEQUENCED);
    if (c->bare)
        resize(frame, (int64_t)lane_bytes(s));
    frame[TOS] = (uint8_t)(s->tos | URGENT);
    put_checksum(frame);
    memcpy(frame + s->lanes_at, c->lanes, lane_bytes(s));
    finish_frame(out, frame, s->lanes_at, s->lanes);
    s->counters.requests++;
}

/* Ask a worker for the contribution that it sent under a number, past all switches. */
static void request_contribution(struct server *s, struct output *out, int64_t worker, int64_t number)
{
    const struct server_form *form = &s->unicast[worker];
    uint8_t *frame = begin_frame(out, form->prefix, form->bytes);
    put_tos(frame, s->tos | URGENT);
    frame[FLAGS] = STALE | BYPASS;
    frame[REDUCTION] = NONE;
    set_number(frame, number, SEQUENCED);
    memset(frame + form->bytes, 0, lane_bytes(s));
    finish_frame(out, frame, form->bytes, s->lanes);
    s->counters.requests++;
}

/* -- sums */

static uint32_t *single_at(const struct server *s, int64_t slot, int64_t worker)
{
    return &s->single_at[slot * s->workers + worker];
}

/* Whether a worker's contribution to a slot's fragment is in. */
static int is_heard(const struct server *s, int64_t slot, int64_t worker)
{
    return s->held[slot * s->children + s->child_of[worker]] || (s->sums[slot].singles && *single_at(s, slot, worker));
}

/* Drop the singles of a slot that a child covers, or all if there is none; returns how many. */
static int64_t drop_singles(struct server *s, int64_t slot, int64_t child)
{
    struct sum *sum = &s->sums[slot];
    int64_t before = sum->singles;
    for (int64_t worker = 0; sum->singles && worker < s->workers; worker++) {
        uint32_t *at = single_at(s, slot, worker);
        if (!*at || (child != EMPTY && s->child_of[worker] != child))
            continue;
        s->free_rows[s->free_singles++] = *at;
        *at = 0;
        sum->singles--;
        sum->covered--;
    }
    return before - sum->singles;
}

static void empty_sum(struct server *s, int64_t slot)
{
    struct sum *sum = &s->sums[slot];
    drop_singles(s, slot, EMPTY);
    memset(s->held + slot * s->children, 0, (size_t)s->children);
    sum->covered = 0;
    sum->started = sum->flags = sum->code = 0;
}

/* Open a contribution's slot for its fragment if that is newer; returns whether it is the slot's now.
 *
 * An older one is ignored, and so is one that is not newer than the history, whose result some worker has. One of
 * another reduction or width than its slot's is refused. */
static int open_sum(struct server *s, const struct contribution *c)
{
    struct sum *sum = &s->sums[c->slot];
    if (sum->fragment == c->fragment) {
        s->counters.refused += sum->reduction != c->reduction;
        return sum->reduction == c->reduction;
    }
    if (!newer_fragment(c->fragment, sum->fragment) || !newer_fragment(c->fragment, s->finished[c->slot].fragment)) {
        s->counters.older++;
        return 0;
    }
    sum->fragment = c->fragment;
    sum->doubted = 0;
    sum->reduction = c->reduction;
    s->since[c->slot] = c->now;
    empty_sum(s, c->slot);
    return 1;
}

/* Ask workers whose contributions to a slot's fragment are missing to send them as singles: a RESULT flagged BYPASS,
 * whose lanes show that it is the server's. */
static void ask_for_singles(struct server *s, struct output *out, int64_t slot)
{
    int64_t fragment = s->sums[slot].fragment;
    check_ask(&s->checks, s->scratch, fragment);
    for (int64_t worker = 0; worker < s->workers; worker++) {
        if (is_heard(s, slot, worker))
            continue;
        const struct server_form *form = &s->questions[worker];
        uint8_t *frame = begin_frame(out, form->prefix, form->bytes);
        put_tos(frame, s->tos);
        put32(frame + FRAGMENT, (uint32_t)fragment);
        frame[FLAGS] = BYPASS;
        write_lanes(frame + form->bytes, s->scratch, s->lanes);
        finish_frame(out, frame, form->bytes, s->lanes);
        s->counters.asked++;
    }
}

/* Finish a fragment, whose lanes are in place: it is the history of its slot and is sent to all. */
static void finish_fragment(struct server *s, struct output *out, int64_t slot, int64_t fragment, uint8_t code,
                            uint8_t flags, uint8_t reduction, uint8_t own)
{
    struct sum *sum = &s->sums[slot];
    struct finished *f = &s->finished[slot];
    f->fragment = fragment;
    f->number = EMPTY;
    f->own = own;
    f->code = code;
    f->flags = flags;
    f->reduction = reduction;
    sum->doubted = 0;
    if (sum->fragment != EMPTY && !is_newer(sum->fragment, fragment, 32)) {
        sum->fragment = EMPTY;
        drop_singles(s, slot, EMPTY);
    }
    s->counters.results++;
    s->counters.overflowed += (flags & OVERFLOW) != 0;
    for (int64_t i = 0; i < s->to_all_count; i++)
        send_finished(s, out, &s->to_all[i], slot, s->tos, SEQUENCED);
    s->counters.result_frames += s->to_all_count;
}

/* Finish a fragment with a complete sum, if its check lanes verify. `raw`: its lanes as on the wire; NULL: those of
 * the slot's sum. */
static void finish_sum(struct server *s, struct output *out, int64_t slot, int64_t fragment, const uint8_t *raw,
                       uint8_t code, uint8_t flags, uint8_t reduction)
{
    struct sum *sum = &s->sums[slot];
    uint8_t *kept = finished_lanes(s, slot);
    int32_t *lanes = raw ? s->scratch : sum_lanes(s, slot);
    if (s->verifies) {
        if (raw)
            read_lanes(lanes, raw, s->lanes);
        int64_t needs = check_sum(&s->checks, lanes, fragment);
        if (needs >= 0) {
            check_seal(&s->checks, lanes, fragment, code, needs);
            flags &= (uint8_t)~OVERFLOW; /* it may have wrapped around and back */
        } else if (sum->doubted && flags & OVERFLOW) {
            check_seal_overflow(&s->checks, lanes, fragment, code);
        } else {
            sum->doubted = 1;
            empty_sum(s, slot);
            s->counters.corrupt++;
            ask_for_singles(s, out, slot);
            return;
        }
    }
    if (raw && !s->verifies)
        memcpy(kept, raw, lane_bytes(s));
    else
        write_lanes(kept, lanes, s->lanes);
    finish_fragment(s, out, slot, fragment, code, flags, reduction, 1);
}

/* Finish a slot whose fragment is covered: its singles are added, in the order of workers. */
static void complete_sum(struct server *s, struct output *out, int64_t slot)
{
    struct sum *sum = &s->sums[slot];
    int32_t *lanes = sum_lanes(s, slot);
    for (int64_t worker = 0; sum->singles && worker < s->workers; worker++) {
        uint32_t at = *single_at(s, slot, worker);
        if (!at)
            continue;
        const int32_t *single = s->single_lanes + (at - 1) * s->lanes;
        if (sum->started)
            sum->flags |= combine(lanes, single, s->lanes, sum->reduction);
        else
            memcpy(lanes, single, lane_bytes(s));
        sum->started = 1;
    }
    finish_sum(s, out, slot, sum->fragment, NULL, sum->code, sum->flags, sum->reduction);
}

/* Whether a contribution to a slot in doubt is the valid single of a worker; if not, workers are asked again. */
static int is_alone_and_right(struct server *s, struct output *out, const struct contribution *c)
{
    if (s->all_single) {
        read_lanes(s->scratch, c->lanes, s->lanes);
        if (check_single(&s->checks, s->scratch, c->fragment, c->worker))
            return 1;
        s->counters.corrupt++;
    } else {
        s->counters.repeats++;
    }
    ask_for_singles(s, out, c->slot);
    return 0;
}

/* Add the sum of a child's subtree. */
static void add_sum(struct server *s, struct output *out, const struct contribution *c, int64_t child)
{
    struct sum *sum = &s->sums[c->slot];
    uint8_t *held = &s->held[c->slot * s->children + child];
    if (!open_sum(s, c) || (sum->doubted && !is_alone_and_right(s, out, c)))
        return;
    if (*held) {
        s->counters.repeats++;
        return;
    }
    s->counters.sums++;
    uint8_t flags = c->flags & (OVERFLOW | ECN);
    if (sum->singles)
        drop_singles(s, c->slot, child);
    if (c->weight == s->workers) {
        finish_sum(s, out, c->slot, c->fragment, c->lanes, c->code, flags, c->reduction);
        return;
    }
    int32_t *lanes = sum_lanes(s, c->slot);
    if (sum->started) {
        read_lanes(s->scratch, c->lanes, s->lanes);
        flags |= combine(lanes, s->scratch, s->lanes, sum->reduction);
    } else {
        read_lanes(lanes, c->lanes, s->lanes);
    }
    *held = sum->started = 1;
    sum->covered += c->weight;
    sum->flags |= flags;
    sum->code = sum->code > c->code ? sum->code : c->code;
    if (sum->covered == s->workers)
        complete_sum(s, out, c->slot);
}

/* Find a row for a single of a fragment; 0 if there is none. If all are taken, the newest fragment that has some
 * loses them, unless this is the newest: its workers send them again. So the oldest fragment is always completed. */
static uint32_t row_for_single(struct server *s, int64_t fragment)
{
    int64_t slot = EMPTY, newest = fragment;
    for (int64_t i = 0; !s->free_singles && i < s->window; i++)
        if (s->sums[i].singles && is_newer(s->sums[i].fragment, newest, 32)) {
            slot = i;
            newest = s->sums[i].fragment;
        }
    if (slot != EMPTY)
        s->counters.refused += drop_singles(s, slot, EMPTY);
    return s->free_singles ? s->free_rows[--s->free_singles] : 0;
}

/* Keep a worker's single contribution, if nothing of that worker has arrived yet. */
static void keep_single(struct server *s, struct output *out, const struct contribution *c)
{
    struct sum *sum = &s->sums[c->slot];
    if (!open_sum(s, c))
        return;
    if (is_heard(s, c->slot, c->worker)) {
        s->counters.repeats++;
        return;
    }
    uint32_t row = row_for_single(s, c->fragment);
    if (!row) {
        s->counters.refused++;
        return;
    }
    *single_at(s, c->slot, c->worker) = row;
    read_lanes(s->single_lanes + (row - 1) * s->lanes, c->lanes, s->lanes);
    s->counters.singles++;
    sum->singles++;
    sum->covered++;
    sum->flags |= c->flags & (OVERFLOW | ECN);
    sum->code = sum->code > c->code ? sum->code : c->code;
    if (sum->covered == s->workers)
        complete_sum(s, out, c->slot);
}

/* -- totals handed over */

/* Whether a total newer than the history can be a result that some worker has.
 *
 * A worker that sends f has the result of f - W, so all workers have sent f - W. Hence no worker is more than a window
 * ahead of a fragment that this server has summed, none is ahead of the one that is open in its slot, and none is more
 * than two windows behind that one. */
static int is_within_window(const struct server *s, const struct contribution *c)
{
    const struct finished *f = &s->finished[c->slot];
    int64_t opened = s->sums[c->slot].fragment;
    if (f->own)
        return (uint32_t)(c->fragment - f->fragment) <= s->window;
    return opened == EMPTY || (uint32_t)(opened - c->fragment) <= 2 * s->window;
}

/* Whether a total handed over is a server's result. */
static int is_result(struct server *s, const struct contribution *c)
{
    int useless;
    if (!s->verifies)
        return 1;
    read_lanes(s->scratch, c->lanes, s->lanes);
    if (check_result(&s->checks, s->scratch, c->fragment, c->code, c->flags & OVERFLOW, &useless))
        return 1;
    s->counters.corrupt++;
    return 0;
}

static void take_total(struct server *s, struct output *out, const struct contribution *c)
{
    if (!newer_fragment(c->fragment, s->finished[c->slot].fragment)) {
        s->counters.older++;
    } else if (!is_within_window(s, c) || !is_result(s, c)) {
        s->counters.refused++;
    } else {
        s->counters.handed_over++;
        memcpy(finished_lanes(s, c->slot), c->lanes, lane_bytes(s));
        finish_fragment(s, out, c->slot, c->fragment, c->code, c->flags & (OVERFLOW | ECN), c->reduction, 0);
    }
}

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

/* Fill `order` with the slots that have a result, oldest first (Shell's sort). */
static void sort_history(struct server *s)
{
    s->filled = 0;
    for (int64_t slot = 0; slot < s->window; slot++)
        if (s->finished[slot].fragment != EMPTY)
            s->order[s->filled++] = slot;
    for (int64_t gap = s->filled / 2; gap; gap /= 2)
        for (int64_t i = gap; i < s->filled; i++) {
            int64_t slot = s->order[i], at = i;
            for (; at >= gap; at -= gap) {
                int64_t other = s->order[at - gap];
                if (!is_newer(s->finished[other].fragment, s->finished[slot].fragment, 32))
                    break;
                s->order[at] = other;
            }
            s->order[at] = slot;
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

/* Whether a worker's contribution to a slot's fragment is in. */
int server_heard(const struct server *s, int64_t slot, int64_t worker)
{
    return is_heard(s, slot, worker);
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
