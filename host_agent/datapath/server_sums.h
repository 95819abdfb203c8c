/* Sums under way and finished, totals handed over. */

static uint32_t *single_at(const struct server *s, int64_t slot, int64_t worker)
{
    return &s->single_at[slot * s->workers + worker];
}

/* Whether a worker's contribution to a slot's fragment is in. */
int server_heard(const struct server *s, int64_t slot, int64_t worker)
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
        if (server_heard(s, slot, worker))
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
    if (sum->fragment != EMPTY && !is_newer(sum->fragment, fragment, 32)) {
        sum->fragment = EMPTY;
        sum->doubted = 0;
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
    if (server_heard(s, c->slot, c->worker)) {
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
