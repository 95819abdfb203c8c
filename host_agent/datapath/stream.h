/* A worker's half of the protocol on one tree: what is in flight, when it is sent again, and the results. The rules
 * are in docs/protocol.md, A worker; stream.py sets a stream up. Times in seconds. library.py defines STEADY_PROBES. */

enum {
    /* Results of later transmissions from which on a missing result is considered lost sooner. */
    REORDERING_DEGREE = 3,
    /* Fragments in a probe, those sent last. */
    PROBE_FRAGMENTS = 4,
    /* Of consecutive probes, one in this many asks the server, past the switches. If all other workers have the
     * result, or bypass, and a switch has lost its slots, contributions would wait there for others that are never
     * sent. */
    ASK_EVERY = 3,
};

/* Least time to wait for an overtaken fragment. */
#define LEAST_PATIENCE 1e-4
/* Fraction of a round trip over which the workers' retransmissions of one fragment are spread. */
#define SPREAD 0.25
/* Smoothed round trips to wait for an overtaken fragment where losses are repaired where they occur: by then requests
 * between neighbours have failed. */
#define LINK_PATIENCE 2.0
/* Least time from which the intervals of further probes grow, unless the first came sooner: a process may be off the
 * processor for tenths of a second. */
#define PROBE_AGAIN 0.25

/* Why a stream has failed. */
enum failure { NO_FAILURE, LANE_OVERFLOW, ALTERED_EXPONENT, NO_RESULT, NO_HANDOVER };

/* A worker's counters, in packets, of all its streams. */
struct worker_counters {
    /* Fragments sent for the first time. */
    int64_t sent;
    /* Retransmitted fragments, including bypassed ones and those after a new epoch. */
    int64_t retransmissions;
    /* Retransmissions triggered by results of later transmissions. */
    int64_t fast_retransmissions;
    /* Retransmissions requested by a neighbour: lost on the link to it. */
    int64_t repaired;
    /* Results requested again: lost on the link from the neighbour. */
    int64_t requests;
    /* Retransmissions as probes. */
    int64_t probes;
    /* Fragments whose timeout passed. */
    int64_t timeouts;
    /* Retransmissions that no switch may aggregate. */
    int64_t bypassed;
    /* Results handed over to a server that may not have them. */
    int64_t handed_over;
    /* Results of fragments in flight. */
    int64_t accepted;
    /* Results of fragments that are not in flight, or of an older epoch. */
    int64_t stale_results;
    /* Results that overflowed, or whose weight is not the number of workers. */
    int64_t refused;
    /* Results of fragments in flight that check lanes show to be altered or forged. */
    int64_t corrupt;
    /* Fragments sent around the switches because the server asked. */
    int64_t asked;
    /* Frames that are not results of this job. */
    int64_t foreign;
    /* Results flagged with congestion. */
    int64_t ecn;
};

/* A tensor's part on this tree, as fragments from `first` on of the stream: the first ones are its `prologues` if it is
 * of floats. Values are read until their result is here, so the result may take their place. */
struct segment {
    const void *source;
    void *result;
    /* Exponent bytes to send with each fragment of floats (docs/protocol.md, Exponents), and those that the prologues
     * have brought; how many have not. Each is for `group` data fragments of the first window. */
    const uint8_t *exponents;
    int64_t *codes;
    int64_t prologues, unanswered, group;
    /* The call's trees, and those some of whose prologues have no result: the first windows of all wait for these,
     * since whichever tree began alone would keep the links from the host to itself for a window. */
    int64_t trees, *waiting;
    /* Type of the elements (elements.py), and width of values in packets: a lane has 2^width of them. */
    int64_t type, width;
    int64_t first, elements, reduction;
    /* Exponent byte to send with each fragment of integers; and the greatest one of all workers. */
    int64_t remark, greatest;
    /* Fragments without a result. */
    int64_t open;
};

struct slot {
    /* The fragment in flight, or the next one. */
    int64_t fragment, in_flight;
    /* Of what is in flight: number and time of the last sending, and whether that went into a silence; the first
     * time, or when its deadline was last postponed; its timeout. */
    int64_t order, quiet;
    double sent_at, first_sent_at, due;
    /* When the result of a later sending had come first. */
    double overtaken_at;
    /* How often it was sent, how often it timed out, and whether it bypasses the switches. */
    int64_t tries, timeouts, bypass;
    /* Its reduction and exponent byte in frames; and the exponent byte that scales it. */
    int64_t reduction, exponent, code;
    /* When the server was last asked because of an invalid result. */
    double asked_at;
    /* The last result: number on the wire, or EMPTY; and whether a new server may not have it. */
    int64_t result, result_code, result_reduction, handing;
};

struct calls;

struct stream {
    struct flow flow;
    struct slot *slots;
    uint8_t *result_lanes;
    struct sent_log sent;
    struct arrivals arrivals;
    /* Slots with results that are being taken in, and slots to send again. */
    int64_t *answered, *again;
    struct worker_counters *counters;
    /* Time of the worker's last result on any tree: its trees share a queue. */
    double *progress;
    /* Calls of a process that come from its socket (calls.c), or NULL. */
    struct calls *calls;
    /* Tensors from the first unfinished one on, by number modulo `segment_room`, which Python makes larger. */
    struct segment *segments;
    int64_t segment_room, first_segment, next_segment;

    /* The plan: frames to send, those that come, and the job's numbers. `urgent` are the same with the ToS bit. */
    const uint8_t *prefix, *urgent, *total, *request;
    int64_t prefix_bytes, request_bytes;
    struct matcher results;
    struct matcher requests;
    struct factors factors;
    /* Whether fragments have check lanes; `values` are the others. */
    int64_t checked;
    struct check_lanes checks;
    int64_t window, lanes, values, worker, workers, epoch;
    /* Flags of all contributions; whether no switch sums these, so that their numbers are for the server; flags of
     * requests; whether results are numbered by the server; whether losses are repaired where they occur; whether a
     * new epoch's server may be a new one. */
    int64_t flags, direct, request_flags, end_to_end, repaired, hands_over;
    /* Timeouts of a fragment after which it bypasses the switches, and retransmissions. */
    int64_t most_timeouts, most_tries;
    double deadline, min_probe;

    /* The next fragment of a new tensor; fragments in flight; sendings so far; the newest sending known to be
     * answered; and the newest that proves nothing: sent once more since, or answered by nobody knows which. */
    int64_t end, open, next, newest, newest_void, probes;
    struct round_trip round_trip;
    struct congestion congestion;
    /* The shortest round trip; times of the last result and sending, and of timers. */
    double shortest, answered_at, last_sent_at, next_due, repair_due;
    double handing_due, handing_since, handing_timeout;
    /* Frames that one call of a function may make. */
    int64_t most_output;
    /* For Python: why the stream has failed, at which slot and when; and whether a tensor is finished, the last
     * prologue of a call has its result, or the stream has failed. */
    int64_t failure, failed_slot;
    double failed_at;
    int64_t news;
    /* Of the results being taken in: how many; whether one met a long queue; whether idle slots may send now. */
    int64_t taken, marked, opened;
};

static inline uint32_t wire_of(const struct slot *slot)
{
    return (uint32_t)slot->fragment;
}

static inline struct slot *slot_of(const struct stream *s, int64_t fragment)
{
    return &s->slots[fragment & (s->window - 1)];
}
