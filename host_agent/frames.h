/* The layout of frames, and frames without lanes. ordinary.py puts flow.h before this text, then this before
 * the others, and defines offsets such as FRAGMENT, flags such as ECN, the bytes of reductions such as AND,
 * and BARE_UP and BARE_DOWN: by reduction, whether contributions and results have no lanes on the wire. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = (LAST - FIRST) / 8, IDLE = -1, EMPTY = -1, NO_WEIGHT = -1, UNKNOWN = -1 };

static inline uint16_t big16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t big32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

/* The child index in the first stack entry of a frame that has one. */
static inline int64_t child_of(const uint8_t *frame)
{
    return big32(frame + STACK) >> CHILD_SHIFT & CHILD_MASK;
}

static inline void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void put32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static int is_plain(const uint8_t *plain, const uint8_t *wanted, const uint8_t *frame)
{
    uint64_t different = 0;
    for (int i = 0; i < WORDS; i++) {
        uint64_t word, mask, expected;
        memcpy(&word, frame + FIRST + 8 * i, 8);
        memcpy(&mask, plain + 8 * i, 8);
        memcpy(&expected, wanted + 8 * i, 8);
        different |= (word ^ expected) & mask;
    }
    return !different;
}

static void give_number(uint8_t *frame, int64_t number)
{
    frame[SEQUENCE] = (uint8_t)(number >> 8);
    frame[SEQUENCE + 1] = (uint8_t)number;
    frame[FLAGS] |= SEQUENCED;
}

/* Make a frame longer by `change` bytes, or shorter: its headers say so (RFC 1624). */
static void resize(uint8_t *frame, int32_t change)
{
    uint32_t before = big16(frame + TOTAL_LENGTH), after = (before + (uint32_t)change) & 0xFFFF;
    uint32_t udp = big16(frame + UDP_LENGTH) + (uint32_t)change;
    uint32_t sum = (~(uint32_t)big16(frame + CHECKSUM) & 0xFFFF) + (~before & 0xFFFF) + after;
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = ~((sum & 0xFFFF) + (sum >> 16));
    put16(frame + TOTAL_LENGTH, after);
    put16(frame + CHECKSUM, sum);
    put16(frame + UDP_LENGTH, udp);
}

static int is_bare(const uint8_t *frame, uint32_t bare)
{
    return (bare >> (frame[REDUCTION] >> 4)) & 1;
}

/* Give n frames without lanes on the wire lanes of zeros, as bare_frames.with_lanes. */
static void add_lanes(uint8_t *frames, uint32_t n, uint32_t length, uint64_t stride, int64_t lanes)
{
    for (uint32_t i = 0; i < n; i++) {
        resize(frames + i * stride, (int32_t)(4 * lanes));
        memset(frames + i * stride + length, 0, (size_t)(4 * lanes));
    }
}

/* Let n frames be as they came, without the lanes of add_lanes. */
static void drop_lanes(uint8_t *frames, uint32_t n, uint64_t stride, int64_t lanes)
{
    for (uint32_t i = 0; i < n; i++)
        resize(frames + i * stride, (int32_t)(-4 * lanes));
}

/* Take the lanes of frames back that have none on the wire (`bare`: BARE_UP or BARE_DOWN), and give the
 * lengths of all. */
static void finish(uint8_t *frames, uint32_t n, uint64_t stride, uint32_t *lengths, int64_t length, int64_t lanes,
                   uint32_t bare)
{
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *frame = frames + i * stride;
        lengths[i] = (uint32_t)length;
        if (is_bare(frame, bare)) {
            lengths[i] -= (uint32_t)(4 * lanes);
            drop_lanes(frame, 1, stride, lanes);
        }
    }
}

/* Whether frames of `length` bytes, the first of which is given, lack lanes that there is room for (1),
 * have them (0), or neither (-1). `lanes_at`: where lanes begin. `bare`: as of finish. */
static int lacks_lanes(const uint8_t *frame, uint32_t length, uint64_t stride, int64_t lanes_at, int64_t lanes,
                       uint32_t bare)
{
    int64_t full = lanes_at + 4 * lanes;
    if ((uint64_t)full > stride)
        return -1;
    if (is_bare(frame, bare))
        return length == lanes_at ? 1 : -1;
    return length == full ? 0 : -1;
}
