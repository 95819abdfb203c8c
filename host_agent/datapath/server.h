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
