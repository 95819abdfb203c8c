/* Numbers as integers that switches add, and back: the rules and their error bounds are in numbers.py. Elements of
 * tensors have the types of hopsum.host_agent.elements: OF_FLOAT32 and so on. */

/* Scale factors of a job, by exponent byte: to integers of 32 bits and back, 0 for those that are converted in double;
 * and the value of an integer 1. `limit`: to which integers are clipped, since a process may change values while
 * they are read. Those for 16 bits are 2^16 times smaller, and greater. */
struct factors {
    const float *up, *down;
    const double *step;
    int64_t limit, bits;
};

/* Scale n float32 by an exponent byte to integers. */
static void quantise(const struct factors *f, const float *from, int64_t n, uint8_t code, int32_t *to)
{
    float factor = f->up[code];
    if (factor == 0) {
        double step = f->step[code], most = (double)((INT64_C(1) << (31 - f->bits)) - 1);
        for (int64_t i = 0; i < n; i++) {
            double scaled = rint((double)from[i] / step);
            scaled = scaled < most ? scaled : most;
            scaled = scaled > -most ? scaled : -most;
            to[i] = (int32_t)scaled;
        }
    } else {
        float limit = (float)f->limit;
        for (int64_t i = 0; i < n; i++) {
            float scaled = rintf(from[i] * factor);
            scaled = scaled < limit ? scaled : limit;
            scaled = scaled > -limit ? scaled : -limit;
            to[i] = (int32_t)scaled;
        }
    }
}

/* Turn n sums back into float32 by an exponent byte. */
static void dequantise(const struct factors *f, const int32_t *sums, int64_t n, uint8_t code, float *to)
{
    float factor = f->down[code];
    if (factor == 0)
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)((double)sums[i] * f->step[code]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (float)sums[i] * factor;
}

/* -- float16, and bfloat16, which is the upper half of a float32; all values are finite */

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float of_float32(float value)
{
    return value;
}

static inline float to_float32(float value)
{
    return value;
}

static inline float of_bfloat16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

static inline uint16_t to_bfloat16(float value)
{
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline float of_float16(uint16_t bits)
{
    uint32_t magnitude = (uint32_t)(bits & 0x7FFF) << 13, sign = (uint32_t)(bits & 0x8000) << 16;
    /* Exponents are biased by 15 there, by 127 here. A denormal has no leading 1: here it gets one, worth 2^-14. */
    float normal = float_of(magnitude + (112u << 23)), denormal = float_of(magnitude + (113u << 23)) - 0x1p-14f;
    return float_of(bits_of(magnitude < 1u << 23 ? denormal : normal) | sign);
}

static inline uint16_t to_float16(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & INT32_MAX;
    uint32_t normal = (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    /* The last bit of numbers from 1/2 to 1 is worth 2^-24, as that of denormals. */
    uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t made = magnitude < 113u << 23 ? denormal : normal;
    made = magnitude >= 0x477FF000 ? 0x7C00 : made; /* 65520 and more: infinite */
    return (uint16_t)(made | (bits >> 16 & 0x8000));
}

/* -- integers of 16 bits, in the order of the wire */

static inline uint16_t swapped(uint16_t value)
{
    return (uint16_t)(value << 8 | value >> 8);
}

/* The sum of this and a number below 2^22 has it as an integer, rounded to nearest even, in its lower bits. */
#define AS_INTEGER 0x1.8p23f

/* A scaled value as an integer of at most `most`. */
static inline uint16_t field_of(float scaled, float most)
{
    scaled = scaled < most ? scaled : most;
    scaled = scaled > -most ? scaled : -most;
    return swapped((uint16_t)bits_of(scaled + AS_INTEGER));
}

/* Scale n values of a type by an exponent byte to integers; and turn n sums back. */
#define FIELDS_OF(type, name) \
    OVER_LANES static void quantise_##name(const struct factors *f, const type *from, int64_t n, uint8_t code, \
                                           uint16_t *to) \
    { \
        float factor = f->up[code] * 0x1p-16f, most = (float)((INT32_C(1) << (15 - f->bits)) - 1); \
        double exact = 0x1p-16 / f->step[code]; \
        if (factor != 0) \
            for (int64_t i = 0; i < n; i++) \
                to[i] = field_of(of_##name(from[i]) * factor, most); \
        else \
            for (int64_t i = 0; i < n; i++) \
                to[i] = field_of((float)((double)of_##name(from[i]) * exact), most); \
    } \
    OVER_LANES static void dequantise_##name(const struct factors *f, const uint16_t *sums, int64_t n, uint8_t code, \
                                             type *to) \
    { \
        float factor = f->down[code] * 0x1p16f; \
        double exact = f->step[code] * 0x1p16; \
        if (factor != 0) \
            for (int64_t i = 0; i < n; i++) \
                to[i] = to_##name((float)(int16_t)swapped(sums[i]) * factor); \
        else \
            for (int64_t i = 0; i < n; i++) \
                to[i] = to_##name((float)((double)(int16_t)swapped(sums[i]) * exact)); \
    }

FIELDS_OF(float, float32)
FIELDS_OF(uint16_t, float16)
FIELDS_OF(uint16_t, bfloat16)

/* -- floats of 16 bits as integers of 32, by way of float32 */

/* Values that are converted at once. */
enum { BLOCK = 512 };

#define WORDS_OF(name) \
    OVER_LANES static void widen_##name(const struct factors *f, const uint16_t *from, int64_t n, uint8_t code, \
                                        int32_t *to) \
    { \
        float floats[BLOCK]; \
        for (int64_t at = 0; at < n; at += BLOCK) { \
            int64_t count = n - at < BLOCK ? n - at : BLOCK; \
            for (int64_t i = 0; i < count; i++) \
                floats[i] = of_##name(from[at + i]); \
            quantise(f, floats, count, code, to + at); \
        } \
    } \
    OVER_LANES static void narrow_##name(const struct factors *f, const int32_t *sums, int64_t n, uint8_t code, \
                                         uint16_t *to) \
    { \
        float floats[BLOCK]; \
        for (int64_t at = 0; at < n; at += BLOCK) { \
            int64_t count = n - at < BLOCK ? n - at : BLOCK; \
            dequantise(f, sums + at, count, code, floats); \
            for (int64_t i = 0; i < count; i++) \
                to[at + i] = to_##name(floats[i]); \
        } \
    }

WORDS_OF(float16)
WORDS_OF(bfloat16)

OVER_LANES static void swap_bytes(const uint16_t *from, int64_t n, uint16_t *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = swapped(from[i]);
}

/* -- tensors of all types */

static int64_t element_bytes(int64_t type)
{
    return type == OF_INT8 ? 1 : type == OF_INT32 || type == OF_FLOAT32 ? 4 : 2;
}

/* Write n values as integers of 16 or 8 bits, in the order of the wire; `code`: exponent byte that scales floats. */
void write_narrow(const struct factors *f, int64_t type, const void *from, int64_t n, uint8_t code, void *to)
{
    switch (type) {
    case OF_FLOAT32:
        quantise_float32(f, from, n, code, to);
        break;
    case OF_FLOAT16:
        quantise_float16(f, from, n, code, to);
        break;
    case OF_BFLOAT16:
        quantise_bfloat16(f, from, n, code, to);
        break;
    case OF_INT16:
        swap_bytes(from, n, to);
        break;
    default:
        memcpy(to, from, (size_t)n);
    }
}

/* The same, back. */
void read_narrow(const struct factors *f, int64_t type, const void *from, int64_t n, uint8_t code, void *to)
{
    switch (type) {
    case OF_FLOAT32:
        dequantise_float32(f, from, n, code, to);
        break;
    case OF_FLOAT16:
        dequantise_float16(f, from, n, code, to);
        break;
    case OF_BFLOAT16:
        dequantise_bfloat16(f, from, n, code, to);
        break;
    case OF_INT16:
        swap_bytes(from, n, to);
        break;
    default:
        memcpy(to, from, (size_t)n);
    }
}

/* Turn n values into integers of 32 bits. */
void make_wide(const struct factors *f, int64_t type, const void *from, int64_t n, uint8_t code, int32_t *to)
{
    switch (type) {
    case OF_FLOAT32:
        quantise(f, from, n, code, to);
        break;
    case OF_FLOAT16:
        widen_float16(f, from, n, code, to);
        break;
    case OF_BFLOAT16:
        widen_bfloat16(f, from, n, code, to);
        break;
    case OF_INT32:
        memcpy(to, from, (size_t)(4 * n));
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            to[i] = ((const int8_t *)from)[i];
    }
}

/* The same, back, of types that are not int32. */
void take_wide(const struct factors *f, int64_t type, const int32_t *from, int64_t n, uint8_t code, void *to)
{
    switch (type) {
    case OF_FLOAT32:
        dequantise(f, from, n, code, to);
        break;
    case OF_FLOAT16:
        narrow_float16(f, from, n, code, to);
        break;
    case OF_BFLOAT16:
        narrow_bfloat16(f, from, n, code, to);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            ((int8_t *)to)[i] = (int8_t)from[i];
    }
}

/* -- exponents */

/* Return the exponent byte of a magnitude, the bits of a float32; UNKNOWN if it is not finite. */
static int64_t code_of(uint32_t peak)
{
    return peak >= 0x7F800000 ? UNKNOWN : (int64_t)(peak >> 23) + (peak >= 0x00400000);
}

/* Return the exponent byte of n float32, UNKNOWN if one is not finite. */
static int64_t exponent_code(const float *values, int64_t n)
{
    const uint8_t *bytes = (const uint8_t *)values;
    int32_t peak = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t magnitude;
        memcpy(&magnitude, bytes + 4 * i, 4);
        magnitude &= INT32_MAX;
        peak = magnitude > peak ? magnitude : peak;
    }
    return code_of((uint32_t)peak);
}

OVER_LANES static uint16_t greatest_magnitude(const uint16_t *bits, int64_t n)
{
    int16_t peak = 0;
    for (int64_t i = 0; i < n; i++) {
        int16_t magnitude = (int16_t)(bits[i] & INT16_MAX);
        peak = magnitude > peak ? magnitude : peak;
    }
    return (uint16_t)peak;
}

static int64_t exponent_code_of(int64_t type, const void *values, int64_t n)
{
    if (type == OF_FLOAT32)
        return exponent_code(values, n);
    uint16_t peak = greatest_magnitude(values, n);
    if (type == OF_BFLOAT16)
        return code_of((uint32_t)peak << 16);
    return peak >= 0x7C00 ? UNKNOWN : code_of(bits_of(of_float16(peak)));
}

/* Set the exponent byte of each fragment of `values` values of a flat tensor of floats. Returns the first fragment that
 * has a value which is not finite, UNKNOWN if there is none. */
int64_t exponent_codes(int64_t type, const void *tensor, int64_t n, int64_t values, uint8_t *codes)
{
    const uint8_t *from = tensor;
    for (int64_t at = 0, row = 0; at < n; at += values, row++) {
        int64_t code = exponent_code_of(type, from + at * element_bytes(type), n - at < values ? n - at : values);
        if (code == UNKNOWN)
            return row;
        codes[row] = (uint8_t)code;
    }
    return UNKNOWN;
}
