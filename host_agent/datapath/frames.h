/* Frames: their fields, and room for frames to send. library.py defines offsets such as FRAGMENT, flags such as ECN,
 * the bytes of reductions such as NONE, the kinds of packets such as RESULT, and BARE_UP and BARE_DOWN: by
 * reduction, whether contributions and results have no lanes on the wire. A variable `reduction` is the byte of a
 * frame, with the width of values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Loops over lanes, which are compiled twice: for all processors of a kind, and for those with AVX2, which takes a
 * quarter of the time. The library decides as it is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define OVER_LANES __attribute__((target_clones("avx2", "default")))
#else
#define OVER_LANES
#endif

enum { IDLE = -1, EMPTY = -1, UNKNOWN = -1 };
/* The constant part of a frame: the bytes FIRST to LAST, as words of 64 bits. */
enum { WORDS = (LAST - FIRST) / 8 };

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

static inline double earlier(double a, double b)
{
    return a < b ? a : b;
}

static inline double later(double a, double b)
{
    return a > b ? a : b;
}

static inline uint32_t kind_of(const uint8_t *frame)
{
    return frame[KIND] & 0x0F;
}

/* The child index in the first stack entry of a frame that has one. */
static inline int64_t child_of(const uint8_t *frame)
{
    return big32(frame + STACK) >> CHILD_SHIFT & CHILD_MASK;
}

/* Whether a serial number of `bits` bits is newer than another (RFC 1982). */
static inline int is_newer(int64_t a, int64_t b, int bits)
{
    uint64_t distance = (uint64_t)(a - b) & ((UINT64_C(1) << bits) - 1);
    return distance && distance < UINT64_C(1) << (bits - 1);
}

/* Whether frames of this kind and reduction have no lanes on the wire (hopsum.protocol.wire.carries_lanes); a
 * request goes by its stack. */
static int is_bare(const uint8_t *frame)
{
    uint32_t kind = kind_of(frame), bare = BARE_DOWN;
    if (kind == CONTRIBUTION || (kind == REQUEST && frame[HOPS]))
        bare = BARE_UP;
    return bare >> (frame[REDUCTION] >> 4) & 1;
}

/* Whether a byte is a reduction with a width that it can have. */
static int is_reduction(uint8_t reduction)
{
    uint32_t width = reduction & 0x0F, known = width ? VALUE_REDUCTIONS : KNOWN_REDUCTIONS;
    return width <= WIDTH_8 && known >> (reduction >> 4) & 1;
}

/* What frames of one stream have in common, by words from FIRST on: `belongs` and `plain` are masks of the fields
 * that identify the stream, and of those that plain frames share on top (hopsum.host_agent.codec.Matcher).
 * `expected` is for frames with lanes, `expected_bare` for those without. */
struct matcher {
    const uint64_t *belongs, *plain, *expected, *expected_bare;
};

enum match { FOREIGN, UNUSUAL, PLAIN };

/* Compare a frame of at least LAST bytes with those of a stream. */
static enum match match(const struct matcher *m, const uint8_t *frame, int bare)
{
    const uint64_t *expected = bare ? m->expected_bare : m->expected;
    uint64_t foreign = 0, unusual = 0;
    for (int i = 0; i < WORDS; i++) {
        uint64_t word;
        memcpy(&word, frame + FIRST + 8 * i, 8);
        word ^= expected[i];
        foreign |= word & m->belongs[i];
        unusual |= word & m->plain[i];
    }
    return foreign ? FOREIGN : unusual ? UNUSUAL : PLAIN;
}

/* Set 16 bits of a frame's IPv4 header, and its checksum (RFC 1624). */
static void put_header16(uint8_t *frame, int at, uint32_t value)
{
    uint32_t before = big16(frame + at), after = value & 0xFFFF;
    uint32_t sum = (~(uint32_t)big16(frame + CHECKSUM) & 0xFFFF) + (~before & 0xFFFF) + after;
    sum = (sum & 0xFFFF) + (sum >> 16);
    put16(frame + CHECKSUM, ~((sum & 0xFFFF) + (sum >> 16)));
    put16(frame + at, after);
}

/* Make a frame longer by `change` bytes, or shorter: its headers say so. */
static void resize(uint8_t *frame, int64_t change)
{
    put_header16(frame, TOTAL_LENGTH, big16(frame + TOTAL_LENGTH) + (uint32_t)change);
    put16(frame + UDP_LENGTH, big16(frame + UDP_LENGTH) + (uint32_t)change);
}

/* Begin a frame: its constant part, with lanes; `finish_frame` ends it. The caller has seen to the room. */
static uint8_t *begin_frame(struct output *out, const uint8_t *prefix, int64_t prefix_bytes)
{
    uint8_t *frame = out->frames + out->made * out->stride;
    memcpy(frame, prefix, (size_t)prefix_bytes);
    return frame;
}

/* End a frame whose fields and lanes are set. */
static void finish_frame(struct output *out, uint8_t *frame, int64_t prefix_bytes, int64_t lanes)
{
    int64_t length = prefix_bytes + 4 * lanes;
    if (!out->whole && is_bare(frame)) {
        length = prefix_bytes;
        resize(frame, -4 * lanes);
    }
    out->lengths[out->made++] = (uint32_t)length;
}

/* Values of 16 bits in lanes, whose order does not matter. */
typedef int16_t __attribute__((may_alias)) half_lane;
typedef uint16_t __attribute__((may_alias)) unsigned_half_lane;

/* Add n values of a type to a sum; returns OVERFLOW from the function if one wrapped around, else 0. */
#define ADD_VALUES(type, sum, values, n) \
    do { \
        type *into = (type *)(sum), wrapped = 0; \
        const type *from = (const type *)(values); \
        for (int64_t i = 0; i < (n); i++) { \
            type a = into[i], b = from[i], total = (type)(a + b); \
            wrapped |= (type)((a ^ total) & (b ^ total)); \
            into[i] = total; \
        } \
        return wrapped >> (8 * sizeof(type) - 1) ? OVERFLOW : 0; \
    } while (0)

#define TAKE_MAXIMA(type, sum, values, n) \
    do { \
        type *into = (type *)(sum); \
        const type *from = (const type *)(values); \
        for (int64_t i = 0; i < (n); i++) \
            into[i] = into[i] > from[i] ? into[i] : from[i]; \
    } while (0)

/* Combine n lanes into a sum as switches do; returns OVERFLOW if a value wrapped around, else 0. */
OVER_LANES static uint8_t combine(int32_t *sum, const int32_t *values, int64_t n, uint8_t reduction)
{
    switch (reduction) {
    case AND:
    case REDUCE_AND:
        for (int64_t i = 0; i < n; i++)
            sum[i] &= values[i];
        return 0;
    case MAX:
    case REDUCE_MAX:
        TAKE_MAXIMA(int32_t, sum, values, n);
        return 0;
    case MAX | WIDTH_16:
    case REDUCE_MAX | WIDTH_16:
        TAKE_MAXIMA(half_lane, sum, values, 2 * n);
        return 0;
    case MAX | WIDTH_8:
    case REDUCE_MAX | WIDTH_8:
        TAKE_MAXIMA(int8_t, sum, values, 4 * n);
        return 0;
    case XOR:
    case REDUCE_XOR:
        for (int64_t i = 0; i < n; i++)
            sum[i] ^= values[i];
        return 0;
    case NONE:
    case BROADCAST: /* of zeros, and the root's */
        for (int64_t i = 0; i < n; i++)
            sum[i] |= values[i];
        return 0;
    case SUM | WIDTH_16:
    case REDUCE_SUM | WIDTH_16:
        ADD_VALUES(unsigned_half_lane, sum, values, 2 * n);
    case SUM | WIDTH_8:
    case REDUCE_SUM | WIDTH_8:
        ADD_VALUES(uint8_t, sum, values, 4 * n);
    default:
        ADD_VALUES(uint32_t, sum, values, n);
    }
}

OVER_LANES static void read_lanes(int32_t *values, const uint8_t *lanes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = (int32_t)big32(lanes + 4 * i);
}

OVER_LANES static void write_lanes(uint8_t *lanes, const int32_t *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        put32(lanes + 4 * i, (uint32_t)values[i]);
}

/* Arrays of a state lie one behind the other in one block of memory, which `place` divides: a state is copied with
 * its block, after which its `layout` function finds the arrays again. From NULL on, it counts the bytes. */
static void *place(uint8_t **at, size_t bytes)
{
    uint8_t *placed = *at;
    *at += (bytes + 15) & ~(size_t)15;
    return placed;
}

#define PLACE(at, array, count) ((array) = place(at, (size_t)(count) * sizeof *(array)))
