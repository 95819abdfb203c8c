/* Congestion window of a stream: its fragments in flight on shared links (docs/congestion.md). Workers react to marks
 * as TCP does (RFC 5681, with the marks of RFC 3168). congestion.py says how many fragments fit the queues of a path,
 * and defines LEAST_WINDOW and NO_QUEUE. */

struct congestion {
    /* Fragments that may be in flight: now, and at most; the number of slots. */
    double size, most;
    int64_t window;
    /* Whether frames may queue on the path; its round trip with empty queues, and the fragments in a TCP segment. */
    int64_t queues;
    double path_round_trip, path_step;
    /* Marks count from this sending on: the window was halved for earlier ones. The first sending of the current round
     * trip, and the shortest round trip measured in it. */
    int64_t reacted, round;
    double shortest;
};

void congestion_start(struct congestion *c)
{
    c->size = c->most;
    c->reacted = c->round = 0;
    c->shortest = INFINITY;
}

/* Go on with another path and `most`. Marks do not count where links have no rate: they come from bursts that a switch
 * processes in one batch. */
void congestion_move(struct congestion *c)
{
    c->size = c->queues ? earlier(c->size, c->most) : c->most;
}

static int64_t limit_of(const struct congestion *c)
{
    return (int64_t)c->size;
}

/* Whether fewer fragments than slots may be in flight. */
static int is_limited(const struct congestion *c)
{
    return c->size < (double)c->window;
}

/* Ignore marks of all that was sent before sending `next`: a result has overtaken another, which is lost. Sums wait
 * for the lost one, and what has waited leaves at once. A queue of that is no sign of traffic, and the window must
 * cover the wait. */
void congestion_overtaken(struct congestion *c, int64_t next)
{
    c->reacted = next;
}

/* Follow what results say of queues; `marked`: one of them met a long one. `newest` is the last sending that they
 * answer, `next` the next one, `in_flight` counts them in, and `round_trip` is the shortest of theirs. Delay alone
 * never shrinks the window: the wait for the slowest worker looks like a queue. But a round trip close to the
 * propagation and transmission time shows empty queues, and the window doubles. */
void congestion_answered(struct congestion *c, int64_t newest, int64_t next, int64_t in_flight, double round_trip,
                         int marked)
{
    if (!c->queues || !(marked || is_limited(c)))
        return;
    c->shortest = earlier(c->shortest, round_trip);
    if (marked && newest >= c->reacted) {
        c->size = later(earlier(c->size, (double)in_flight) / 2, earlier(LEAST_WINDOW, c->most));
        c->reacted = next;
    } else if (newest >= c->round && in_flight >= limit_of(c)) {
        double step = c->path_step;
        if (c->shortest <= NO_QUEUE * c->path_round_trip)
            step = later(step, c->size);
        c->size = earlier(c->size + step, c->most);
    } else {
        return;
    }
    c->round = next;
    c->shortest = INFINITY;
}
