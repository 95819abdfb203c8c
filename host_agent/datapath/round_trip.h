/* Round trips and the timeout they lead to: RFC 6298. Times in seconds. */

struct round_trip {
    /* The first timeout, and its bounds. `patient`: others repair losses, and timeouts are for what they cannot. */
    double initial, least, most;
    int64_t patient;
    /* Smoothed round trip (UNKNOWN before the first), its variation, and the timeout. */
    double smoothed, variation, timeout, backed_off_at;
};

void round_trip_start(struct round_trip *r)
{
    r->smoothed = UNKNOWN;
    r->variation = 0;
    r->timeout = r->initial;
    r->backed_off_at = -INFINITY;
}

/* The smoothed round trip; 0 if none is known. */
static double known_round_trip(const struct round_trip *r)
{
    return later(r->smoothed, 0);
}

/* Take in a measured round trip, of a fragment that was sent once (Karn's algorithm). */
void round_trip_sample(struct round_trip *r, double seconds)
{
    if (r->smoothed < 0) {
        r->smoothed = seconds;
        r->variation = seconds / 2;
    } else {
        r->variation += (fabs(r->smoothed - seconds) - r->variation) / 4;
        r->smoothed += (seconds - r->smoothed) / 8;
    }
    r->timeout = earlier(r->most, later(r->least, r->smoothed + 4 * r->variation));
}

/* Double the timeout, as something sent last at `last_sent` has timed out: at most once a round, however many
 * fragments expire in it; the next sample ends it. Returns whether a new round begins. */
int round_trip_back_off(struct round_trip *r, double now, double last_sent)
{
    if (last_sent < r->backed_off_at)
        return 0;
    r->timeout = earlier(r->patient ? 8 * r->most : r->most, (r->patient ? 4 : 2) * r->timeout);
    r->backed_off_at = now;
    return 1;
}

/* Forget the back-off: a new epoch. */
static void restart_timeout(struct round_trip *r)
{
    r->timeout = earlier(r->most, r->timeout);
}
