/* A flow: one (job, tree) at this host, whose frames and timers a port or the simulator drives; and room for the
 * frames that it sends. */
#include <stdint.h>

/* Room for frames to send: `made` of `room` so far, `stride` bytes apart. Frames that have no lanes on the wire keep
 * lanes of zeros if `whole`: worker and server of one host exchange them so. */
struct output {
    uint8_t *frames;
    uint32_t *lengths;
    uint64_t stride, room, made;
    int64_t whole;
};

static inline uint64_t room_left(const struct output *out)
{
    return out->room - out->made;
}

/* The key of a frame's flow: job << 8 | tree, which are at KEY. */
static inline int64_t key_of(const uint8_t *frame)
{
    return frame[KEY] << 16 | frame[KEY + 1] << 8 | frame[KEY + 2];
}

struct flow {
    /* Take in n frames of this flow's job and tree, of any content, of `length` bytes and `stride` apart, while `out`
     * has room for `most_output` frames. Returns how many were taken in, 0 only if `out` has frames of earlier ones. */
    uint32_t (*receive)(struct flow *, const uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride, double now,
                        struct output *out);
    /* At `due`: do what is due; there is room for `most_output` frames. NULL: no timers. */
    void (*tick)(struct flow *, double now, struct output *out);
    /* Take a call that may wait at a process's socket, if this flow expects it. Returns whether there was one. NULL:
     * no process calls. */
    int (*call)(struct flow *, double now, struct output *out);
    /* Say anew when timers are due: streams of one worker share when results have come. NULL: no timers. */
    void (*publish)(struct flow *);
    /* See `key_of`; frames that one call may make. */
    int64_t key, most_output;
    /* When timers are due; how many frames may wait for one another; whether Python has something to do now; and
     * bytes sent by the port. */
    double due;
    int64_t deferrable, finished, sent_bytes;
};
