/* Float32 as integers that switches add, and back: the rules and their error bounds are in numbers.py. */

/* Scale factors of a job, by exponent byte: to integers and back, 0 for those that are converted in double; and the
 * value of an integer 1. `limit`: to which integers must be clipped, 0: rounding cannot exceed it. */
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
    } else if (f->limit) {
        float limit = (float)f->limit;
        for (int64_t i = 0; i < n; i++) {
            float scaled = rintf(from[i] * factor);
            scaled = scaled < limit ? scaled : limit;
            scaled = scaled > -limit ? scaled : -limit;
            to[i] = (int32_t)scaled;
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = (int32_t)rintf(from[i] * factor);
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
    return peak >= 0x7F800000 ? UNKNOWN : (peak >> 23) + (peak >= 0x00400000);
}

/* Set the exponent byte of each fragment of `lanes` values of a flat tensor. Returns the first fragment that has a
 * value which is not finite, UNKNOWN if there is none. */
int64_t exponent_codes(const float *values, int64_t n, int64_t lanes, uint8_t *codes)
{
    for (int64_t at = 0, row = 0; at < n; at += lanes, row++) {
        int64_t code = exponent_code(values + at, n - at < lanes ? n - at : lanes);
        if (code == UNKNOWN)
            return row;
        codes[row] = (uint8_t)code;
    }
    return UNKNOWN;
}

/* The same for Python. */
void quantise_values(const struct factors *f, const float *from, int64_t n, uint8_t code, int32_t *to)
{
    quantise(f, from, n, code, to);
}

void dequantise_values(const struct factors *f, const int32_t *sums, int64_t n, uint8_t code, float *to)
{
    dequantise(f, sums, n, code, to);
}
