/* A flow: one (job, tree) at this host, whose ordinary frames are processed in C. */
#include <stdint.h>

struct flow {
    /* Process the first of n frames of this flow, of `length` bytes and `stride` apart, if these are
     * ordinary. Frames to send, `room` of them at most, and their lengths go to `out` (`stride` apart,
     * too) and `out_lengths`. Returns how many frames were processed, 0 without effect if the first
     * ones are not ordinary, and in `made` how many to send. */
    uint32_t (*process)(struct flow *, uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride,
                        double now, uint8_t *out, uint32_t *out_lengths, uint32_t room, uint32_t *made);
    /* At `due`: do what needs no Python; returns whether `due` is later now. */
    int (*expire)(struct flow *, double now);
    /* Take a call that may wait at a process's socket, if this flow expects it: frames to send as in
     * `process`. Returns whether there was one. NULL: no process calls. */
    int (*call)(struct flow *, double now, uint8_t *out, uint64_t stride, uint32_t *out_lengths, uint32_t room,
                uint32_t *made);
    /* Job << 8 | tree. */
    int64_t key;
    /* When timers are due; how many frames may wait for one another; whether Python has something to do
     * now; and bytes sent. */
    double due;
    int64_t deferrable, finished, sent_bytes;
};
