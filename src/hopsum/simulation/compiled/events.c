/* Virtual time: a heap of events in order of time, ties in order of scheduling. An event is a function here, or
 * something that Python does. */
#include <stdio.h>

/* `run` returns 0, or the number of what Python has to do now. NULL: Python does the event. */
struct event {
    double time;
    uint64_t number;
    int64_t (*run)(void *subject, double detail);
    void *subject;
    double detail;
};

struct events {
    /* Seconds; events so far; the number of the next one that is scheduled; and how many wait. */
    double now;
    uint64_t processed, scheduled, waiting, room;
    struct event *heap;
    /* Set to return to Python after this event: something failed there. */
    int64_t interrupted;
};

/* Return memory for `count` elements, of which some may be in `array`; without memory the process ends. */
static void *resized(void *array, size_t count, size_t bytes)
{
    void *bigger = realloc(array, count * bytes);
    if (!bigger) {
        fprintf(stderr, "no memory for %zu times %zu bytes of a simulated network\n", count, bytes);
        abort();
    }
    return bigger;
}

#define RESIZE(array, count) ((array) = resized((array), (count), sizeof *(array)))

static int is_before(const struct event *a, const struct event *b)
{
    return a->time < b->time || (a->time == b->time && a->number < b->number);
}

/* Schedule an event, at once if its time has passed; return its number, from 1. */
static uint64_t schedule(struct events *e, double time, int64_t (*run)(void *, double), void *subject, double detail)
{
    struct event made = {time > e->now ? time : e->now, ++e->scheduled, run, subject, detail};
    if (e->waiting == e->room) {
        e->room = e->room ? 2 * e->room : 256;
        RESIZE(e->heap, e->room);
    }
    uint64_t at = e->waiting++;
    for (; at; at = (at - 1) / 2) {
        struct event *parent = &e->heap[(at - 1) / 2];
        if (is_before(parent, &made))
            break;
        e->heap[at] = *parent;
    }
    e->heap[at] = made;
    return made.number;
}

static struct event take_first(struct events *e)
{
    struct event first = e->heap[0], moved = e->heap[--e->waiting];
    uint64_t at = 0, child;
    while ((child = 2 * at + 1) < e->waiting) {
        if (child + 1 < e->waiting && is_before(&e->heap[child + 1], &e->heap[child]))
            child++;
        if (is_before(&moved, &e->heap[child]))
            break;
        e->heap[at] = e->heap[child];
        at = child;
    }
    e->heap[at] = moved;
    return first;
}

/* Schedule an event of Python's; return its number. */
uint64_t events_at(struct events *e, double time)
{
    return schedule(e, time, NULL, NULL, 0);
}

/* Return when the next event is due; infinity: there is none. */
double events_next(const struct events *e)
{
    return e->waiting ? e->heap[0].time : INFINITY;
}

/* Run events until Python has something to do: return the number of its event, or a negative number of another thing.
 * Return 0 if there is no event until `limit`, or `most` have been processed. */
int64_t events_run(struct events *e, uint64_t most, double limit)
{
    e->interrupted = 0;
    while (e->waiting && e->heap[0].time <= limit && e->processed < most && !e->interrupted) {
        struct event next = take_first(e);
        e->now = next.time;
        e->processed++;
        int64_t wanted = next.run ? next.run(next.subject, next.detail) : (int64_t)next.number;
        if (wanted)
            return wanted;
    }
    return 0;
}

void events_free(struct events *e)
{
    free(e->heap);
    e->heap = NULL;
}
