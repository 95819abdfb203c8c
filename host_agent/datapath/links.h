/* Sequence numbers between neighbours: the host's half of p4src/include/sequencing.p4. The rules are in
 * docs/protocol.md, Losses on a link and Losses past all switches. */

enum {
    NUMBERS = 1 << 16,
    /* Numbers after which a request to a neighbour on a link is repeated. */
    RETRY = 8,
};

/* Log of the frames sent to a neighbour: the fragment of each number, modulo `size`. */
struct sent_log {
    int64_t *fragments;
    int64_t size, next;
};

/* Assign the next number to a frame of a fragment. */
static int64_t next_number(struct sent_log *log, int64_t fragment)
{
    log->fragments[log->next % log->size] = fragment;
    return log->next++ & (NUMBERS - 1);
}

/* The fragment sent under a number; UNKNOWN if that is too long ago. */
static int64_t find_number(const struct sent_log *log, int64_t number)
{
    int64_t back = (log->next - 1 - number) & (NUMBERS - 1);
    int64_t kept = log->size < log->next ? log->size : log->next;
    return back < kept ? log->fragments[(log->next - 1 - back) % log->size] : UNKNOWN;
}

/* Set a frame's number, and flags on top of those it has. */
static void set_number(uint8_t *frame, int64_t number, uint8_t flags)
{
    put16(frame + SEQUENCE, (uint32_t)number & 0xFFFF);
    frame[FLAGS] |= flags;
}

/* Frames received from a neighbour. `newest`: the newest number, extended beyond 16 bits; -1: none. `asked`, by number
 * modulo GAPS: NOT_MISSING, or the newest number when a missing one was last requested. */
struct arrivals {
    int64_t *asked;
    int64_t newest, missing;
};

#define NOT_MISSING INT64_MIN

static void restart_arrivals(struct arrivals *a)
{
    a->newest = -1;
    a->missing = 0;
    for (int i = 0; i < GAPS; i++)
        a->asked[i] = NOT_MISSING;
}

static void forget_missing(struct arrivals *a, int64_t number)
{
    int64_t *asked = &a->asked[number & (GAPS - 1)];
    if (*asked != NOT_MISSING)
        a->missing--;
    *asked = NOT_MISSING;
}

/* Take the number of a frame; `repair`: it was sent again under its old number. `past`: 0, or the window of a host whose
 * frames come past switches. These remove REPAIR, but the host does not start over within an epoch, so what is old is a
 * repair. Requests are repeated later, as a round trip covers more frames: a window, less what waits in queues, which
 * requests and repairs pass.
 * Missing numbers to request now go to `requests` (GAPS of them at most), their count to `count`. Returns whether the
 * number had come before. */
static int take_number(struct arrivals *a, int64_t number, int repair, int64_t past, int64_t *requests, int *count)
{
    int64_t newest = a->newest, back = (newest - number) & (NUMBERS - 1), retry = past / 4 > RETRY ? past / 4 : RETRY;
    int64_t known = newest + 1 < GAPS ? newest + 1 : GAPS;
    *count = 0;
    if (back < known && a->asked[(newest - back) & (GAPS - 1)] == NOT_MISSING)
        return 1;
    int64_t lead = ((number - newest + NUMBERS / 2) & (NUMBERS - 1)) - NUMBERS / 2;
    if (repair || (-GAPS < lead && lead <= 0) || (lead < 0 && past)) {
        if (-GAPS < lead && lead <= 0)
            forget_missing(a, newest + lead);
        return 0;
    }
    if (lead <= -GAPS) { /* the neighbour has started over */
        restart_arrivals(a);
        a->newest = newest + lead;
        return 0;
    }
    a->newest = newest + lead;
    int64_t oldest = a->newest - GAPS + 1;
    /* Numbers that are too old make room for the new ones. */
    for (int64_t late = newest - GAPS + 1; late < oldest && late <= newest; late++)
        forget_missing(a, late);
    for (int64_t late = newest + 1 > oldest ? newest + 1 : oldest; late < a->newest; late++) {
        a->asked[late & (GAPS - 1)] = newest - retry;
        a->missing++;
    }
    for (int64_t late = oldest; a->missing && late < a->newest; late++) {
        int64_t *asked = &a->asked[late & (GAPS - 1)];
        if (*asked == NOT_MISSING || a->newest - *asked < retry)
            continue;
        *asked = a->newest;
        requests[(*count)++] = late & (NUMBERS - 1);
    }
    return 0;
}
