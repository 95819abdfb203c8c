/* Check lanes: proof that a sum is that of its job's workers' contributions.
 *
 * The last CHECK_LANES lanes of a fragment hold an element of the field of size P = 2^45 - 55, as limbs of 15
 * bits, which switches add like any lanes: the sums of at most 65,535 limbs stay within 31 bits, and together they
 * are the sum of the elements. Worker i contributes to fragment f
 *
 *     r . x_i + z w_i + F(f, i) - F(f, i + 1)        (mod P)
 *
 * where x_i are its values, r (one number per lane) and z are derived from the job's key, w_i is 1 or 0 (see below),
 * and F are numbers derived from the key, each used once. So N workers' check values add up to
 *
 *     r . S + z k + F(f, 0) - F(f, N)
 *
 * where S is the sum of their values over the integers, and k that of the w. A forger without the key who alters S
 * and the check value in any way goes undetected with probability at most (N + 1) / P: no lane changes by a multiple
 * of P (the universal hash of Carter and Wegman, JCSS 1981, made one-time by the pads). A sum that wrapped around is
 * invalid too. The server subtracts F(f, 0) - F(f, N) and *seals* the result, which is then valid as a result only,
 * and only with its exponent byte and overflow flag:
 *
 *     r . S + z [k > 0] + c code + v overflow + R(f)
 *
 * w_i says that worker i's own values need the exponent by which they are scaled. The exponents' maximum on the way
 * up is not a sum, so only w protects it: if no worker needs it, it was altered.
 *
 * Field elements are from 0 to P - 1. Received lanes may be any int32; wire: fragment numbers modulo 2^32. */
#include <stdio.h>

#define PRIME_BITS 45
#define PRIME ((INT64_C(1) << PRIME_BITS) - 55)

enum {
    LIMB_BITS = 15,
    /* A coefficient's lower bits: with values of 32 bits, sums of both parts' products stay within 64. */
    LOW_BITS = 23,
    KEY_BYTES = 32,
    SHAKE_RATE = 168,
    /* Pads of 64 fragments are derived by one call of the hash, and kept in one of PAD_LINES lines. */
    PAD_BITS = 6,
    PADS = 1 << PAD_BITS,
    PAD_LINES = 64,
};

enum pad_use { PAD_OF_WORKER, PAD_OF_RESULT, PAD_OF_QUESTION };

/* What workers and servers of one tree of a job know: its key, and numbers derived from it. `kept` by line: which
 * pads it has, EMPTY if none. `need`, `need_inverse`, `coded`, `overflow`: z, 1 / z, c and v. */
struct check_lanes {
    int64_t tree, workers, values;
    int64_t need, need_inverse, coded, overflow;
    uint8_t *key;
    int32_t *low, *high;
    int64_t *kept, *pads;
};

static uint64_t rotated(uint64_t word, int by)
{
    return word << by | word >> (64 - by);
}

/* The permutation Keccak-f[1600] of FIPS 202. */
static void keccak(uint64_t *a)
{
    static const uint8_t rotations[24] = {1,  3,  6,  10, 15, 21, 28, 36, 45, 55, 2,  14,
                                          27, 41, 56, 8,  25, 43, 62, 18, 39, 61, 20, 44};
    static const uint8_t lanes[24] = {10, 7,  11, 17, 18, 3, 5,  16, 8,  21, 24, 4,
                                      15, 23, 19, 13, 12, 2, 20, 14, 22, 9,  6,  1};
    uint8_t lfsr = 1;
    for (int round = 0; round < 24; round++) {
        uint64_t column[5];
        for (int x = 0; x < 5; x++)
            column[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
        for (int x = 0; x < 5; x++)
            for (int y = 0; y < 25; y += 5)
                a[y + x] ^= column[(x + 4) % 5] ^ rotated(column[(x + 1) % 5], 1);
        uint64_t moved = a[1];
        for (int i = 0; i < 24; i++) {
            uint64_t before = a[lanes[i]];
            a[lanes[i]] = rotated(moved, rotations[i]);
            moved = before;
        }
        for (int y = 0; y < 25; y += 5) {
            uint64_t row[5];
            memcpy(row, a + y, sizeof row);
            for (int x = 0; x < 5; x++)
                a[y + x] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
        }
        for (int j = 0; j < 7; j++) {
            if (lfsr & 1)
                a[0] ^= UINT64_C(1) << ((1 << j) - 1);
            lfsr = (uint8_t)(lfsr << 1 ^ (lfsr >> 7) * 0x71);
        }
    }
}

/* SHAKE-128 (FIPS 202) of fewer bytes than SHAKE_RATE, as `count` numbers of 64 bits, little-endian. */
void shake_128(const uint8_t *message, uint64_t bytes, uint64_t *out, uint64_t count)
{
    uint64_t state[25] = {0};
    uint8_t block[SHAKE_RATE] = {0};
    memcpy(block, message, bytes);
    block[bytes] = 0x1F;
    block[SHAKE_RATE - 1] |= 0x80;
    memcpy(state, block, SHAKE_RATE);
    for (uint64_t i = 0; i < count; i++) {
        if (i % (SHAKE_RATE / 8) == 0)
            keccak(state);
        out[i] = state[i % (SHAKE_RATE / 8)];
    }
}

static int64_t reduced(int64_t number)
{
    number %= PRIME;
    return number < 0 ? number + PRIME : number;
}

/* The product of field elements. */
static int64_t times(int64_t a, int64_t b)
{
    __int128 product = (__int128)a * b;
    /* 2^45 is 55 modulo P. */
    int64_t high = (int64_t)(product >> PRIME_BITS), low = (int64_t)product & ((INT64_C(1) << PRIME_BITS) - 1);
    return (55 * high + low) % PRIME;
}

/* Derive `count` field elements from the key. `use` says for what. */
static void draw(const struct check_lanes *c, const char *use, int64_t first, int64_t second, int64_t *drawn,
                 uint64_t count)
{
    char message[SHAKE_RATE];
    uint64_t *numbers = (uint64_t *)drawn;
    memcpy(message, c->key, KEY_BYTES);
    int named = snprintf(message + KEY_BYTES, sizeof message - KEY_BYTES, "%s %lld %lld %lld", use,
                         (long long)c->tree, (long long)first, (long long)second);
    shake_128((const uint8_t *)message, KEY_BYTES + (uint64_t)named, numbers, count);
    for (uint64_t i = 0; i < count; i++)
        drawn[i] = (int64_t)(numbers[i] % (uint64_t)PRIME);
}

/* Pads of the block of fragments to which `wire` belongs. Worker N's are as frequent as worker 0's, hence the line
 * of their own. */
static const int64_t *pads_of(struct check_lanes *c, enum pad_use use, int64_t worker, int64_t wire)
{
    static const char *const names[] = {"of", "result", "question"};
    enum { RESULTS = PAD_LINES / 2 - 1, TOTALS = RESULTS - 1 };
    int64_t block = wire >> PAD_BITS, line = RESULTS;
    if (use == PAD_OF_WORKER)
        line = worker == c->workers ? TOTALS : worker % TOTALS;
    line = 2 * line + (block & 1);
    int64_t *pads = c->pads + line * PADS, tag = (int64_t)use << 48 | worker << 32 | block;
    if (c->kept[line] == tag)
        return pads;
    char name[32];
    if (use == PAD_OF_WORKER)
        snprintf(name, sizeof name, "of %lld", (long long)c->workers);
    else
        snprintf(name, sizeof name, "%s", names[use]);
    draw(c, name, worker, block, pads, PADS);
    c->kept[line] = tag;
    return pads;
}

static int64_t pad(struct check_lanes *c, enum pad_use use, int64_t worker, int64_t wire)
{
    return pads_of(c, use, worker, wire)[wire & (PADS - 1)];
}

/* The sum of the pads of workers `first` to `last` - 1, above -P. */
static int64_t pads_between(struct check_lanes *c, int64_t first, int64_t last, int64_t wire)
{
    return pad(c, PAD_OF_WORKER, first, wire) - pad(c, PAD_OF_WORKER, last, wire);
}

/* r . x */
OVER_LANES static int64_t hash(const struct check_lanes *c, const int32_t *lanes)
{
    int64_t low = 0, high = 0;
    for (int64_t i = 0; i < c->values; i++) {
        low += (int64_t)c->low[i] * lanes[i];
        high += (int64_t)c->high[i] * lanes[i];
    }
    return reduced(times(reduced(high), 1 << LOW_BITS) + reduced(low));
}

/* The value of the check lanes, not reduced modulo P. */
static int64_t check_number(const struct check_lanes *c, const int32_t *lanes)
{
    int64_t number = 0;
    for (int limb = CHECK_LANES - 1; limb >= 0; limb--)
        number = number * (1 << LIMB_BITS) + lanes[c->values + limb];
    return number;
}

/* The terms of the check lanes other than r . x. */
static int64_t check_rest(const struct check_lanes *c, const int32_t *lanes)
{
    return reduced(check_number(c, lanes) - hash(c, lanes));
}

static void put_number(const struct check_lanes *c, int32_t *lanes, int64_t number)
{
    number = reduced(number);
    for (int limb = 0; limb < CHECK_LANES; limb++)
        lanes[c->values + limb] = (int32_t)(number >> LIMB_BITS * limb & ((1 << LIMB_BITS) - 1));
}

/* Find room for the arrays; `lanes`: of a packet, 0 for a job without check lanes. */
static void place_check_lanes(struct check_lanes *c, uint8_t **at, int64_t lanes)
{
    int64_t values = lanes ? lanes - CHECK_LANES : 0, lines = lanes ? PAD_LINES : 0;
    PLACE(at, c->key, lanes ? KEY_BYTES : 0);
    PLACE(at, c->low, values);
    PLACE(at, c->high, values);
    PLACE(at, c->kept, lines);
    PLACE(at, c->pads, lines * PADS);
}

/* Begin with a job's key of KEY_BYTES. The arrays have their places. */
void check_restart(struct check_lanes *c, const uint8_t *key, int64_t tree, int64_t workers, int64_t lanes)
{
    c->tree = tree;
    c->workers = workers;
    c->values = lanes - CHECK_LANES;
    memcpy(c->key, key, KEY_BYTES);
    /* What is drawn for the values passes through `pads`, which has the room. */
    int64_t *drawn = c->pads;
    draw(c, "coefficients", 0, 0, drawn, (uint64_t)c->values + 3);
    c->need = drawn[0];
    c->coded = drawn[1];
    c->overflow = drawn[2];
    for (int64_t i = 0; i < c->values; i++) {
        c->low[i] = (int32_t)(drawn[i + 3] & ((1 << LOW_BITS) - 1));
        c->high[i] = (int32_t)(drawn[i + 3] >> LOW_BITS);
    }
    int64_t power = c->need;
    c->need_inverse = 1; /* z^(P - 2) */
    for (int bit = 0; bit < PRIME_BITS; bit++) {
        if ((PRIME - 2) >> bit & 1)
            c->need_inverse = times(c->need_inverse, power);
        power = times(power, power);
    }
    for (int line = 0; line < PAD_LINES; line++)
        c->kept[line] = EMPTY;
}

/* -- a worker's */

/* Fill in the check lanes of a worker's fragment; `needed`: its w. */
void check_protect(struct check_lanes *c, int32_t *lanes, int64_t wire, int64_t worker, int needed)
{
    put_number(c, lanes, hash(c, lanes) + (needed ? c->need : 0) + pads_between(c, worker, worker + 1, wire));
}

/* Whether a result is genuine, and whether no worker needed its exponent. */
int check_result(struct check_lanes *c, const int32_t *lanes, int64_t wire, uint8_t code, int overflow, int *useless)
{
    int64_t rest = check_rest(c, lanes) - pad(c, PAD_OF_RESULT, 0, wire) - times(c->coded, code);
    rest = reduced(rest - (overflow ? c->overflow : 0));
    *useless = rest == 0;
    return rest == 0 || rest == c->need;
}

/* Whether a question for single contributions (`check_ask`) is the server's. */
int check_question(struct check_lanes *c, const int32_t *lanes, int64_t wire)
{
    return check_rest(c, lanes) == pad(c, PAD_OF_QUESTION, 0, wire);
}

/* -- a server's */

/* How many workers needed the exponent of a sum of all workers' contributions; -1: it is no such sum. */
int64_t check_sum(struct check_lanes *c, const int32_t *lanes, int64_t wire)
{
    int64_t needs = reduced(check_rest(c, lanes) - pads_between(c, 0, c->workers, wire));
    int64_t k = times(needs, c->need_inverse);
    return k <= c->workers && times(k, c->need) == needs ? k : -1;
}

/* Whether lanes are the contribution of a worker. */
int check_single(struct check_lanes *c, const int32_t *lanes, int64_t wire, int64_t worker)
{
    int64_t rest = reduced(check_rest(c, lanes) - pads_between(c, worker, worker + 1, wire));
    return rest == 0 || rest == c->need;
}

static void put_result(struct check_lanes *c, int32_t *lanes, int64_t wire, uint8_t code, int64_t number)
{
    put_number(c, lanes, number + times(c->coded, code) + pad(c, PAD_OF_RESULT, 0, wire));
}

/* Turn a sum with `needs` of check_sum into a result. */
void check_seal(struct check_lanes *c, int32_t *lanes, int64_t wire, uint8_t code, int64_t needs)
{
    /* r . S, by what check_sum has found */
    int64_t hashed = check_number(c, lanes) - pads_between(c, 0, c->workers, wire) - times(c->need, needs);
    put_result(c, lanes, wire, code, reduced(hashed) + (needs ? c->need : 0));
}

/* Turn a sum that is known to have wrapped around into a result. */
void check_seal_overflow(struct check_lanes *c, int32_t *lanes, int64_t wire, uint8_t code)
{
    put_result(c, lanes, wire, code, hash(c, lanes) + c->need + c->overflow);
}

/* Fill in the lanes of the server's question for single contributions. */
void check_ask(struct check_lanes *c, int32_t *lanes, int64_t wire)
{
    memset(lanes, 0, (size_t)c->values * sizeof *lanes);
    put_number(c, lanes, pad(c, PAD_OF_QUESTION, 0, wire));
}

/* -- for tests */

uint64_t check_layout(struct check_lanes *c, uint8_t *memory, int64_t lanes)
{
    uint8_t *at = memory;
    place_check_lanes(c, &at, lanes);
    return (uint64_t)(at - memory);
}
