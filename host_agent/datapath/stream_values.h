/* Values of a tensor, to lanes and back. */

static struct segment *segment_at(const struct stream *s, int64_t number)
{
    return &s->segments[number % s->segment_room];
}

/* The tensor that a fragment is of. */
static struct segment *segment_of(const struct stream *s, int64_t fragment)
{
    int64_t low = s->first_segment, high = s->next_segment;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (segment_at(s, middle)->first <= fragment)
            low = middle;
        else
            high = middle;
    }
    return segment_at(s, low);
}

static int64_t data_of(const struct segment *t, int64_t fragment)
{
    return fragment - t->first - t->prologues;
}

/* Elements in fragments before data fragment `data`. */
static int64_t elements_before(const struct stream *s, const struct segment *t, int64_t data)
{
    return data * (s->values << t->width);
}

static int64_t elements_in(const struct stream *s, const struct segment *t, int64_t data)
{
    int64_t left = t->elements - elements_before(s, t, data), most = s->values << t->width;
    return left < most ? left : most;
}

static int64_t bytes_before(const struct stream *s, const struct segment *t, int64_t data)
{
    return elements_before(s, t, data) * element_bytes(t->type);
}

/* Write the lanes of a contribution. */
static void load(struct stream *s, const struct segment *t, const struct slot *slot, uint8_t *lanes)
{
    int64_t data = data_of(t, slot->fragment), n = data < 0 ? 0 : elements_in(s, t, data), filled = 4 * n >> t->width;
    const uint8_t *from = data < 0 ? NULL : (const uint8_t *)t->source + bytes_before(s, t, data);
    uint8_t code = (uint8_t)slot->code;
    int32_t made[s->lanes];
    const int32_t *values = made;
    if (t->width) {
        if (n)
            write_narrow(&s->factors, t->type, from, n, code, lanes);
        memset(lanes + filled, 0, (size_t)(4 * s->lanes - filled));
        return;
    }
    if (n && t->type == OF_INT32 && !s->checked)
        values = (const int32_t *)from;
    else if (n)
        make_wide(&s->factors, t->type, from, n, code, made);
    if (!s->checked) {
        write_lanes(lanes, values, n);
        memset(lanes + filled, 0, (size_t)(4 * s->lanes - filled));
        return;
    }
    memset(made + n, 0, (size_t)(4 * (s->lanes - n)));
    int needed = 1;
    if (t->prologues && data >= 0) {
        /* The byte that this fragment's own values need went along a window earlier. */
        int64_t at = data < s->window ? data / t->group : data - s->window + t->prologues;
        needed = t->exponents[at] == code;
    }
    check_protect(&s->checks, made, wire_of(slot), s->worker, needed);
    write_lanes(lanes, made, s->lanes);
}

/* Put a result in place. */
static void store(const struct stream *s, const struct segment *t, int64_t data, const uint8_t *lanes, uint8_t code)
{
    int64_t n = elements_in(s, t, data);
    uint8_t *to = (uint8_t *)t->result + bytes_before(s, t, data);
    int32_t sums[s->lanes];
    if (t->width) {
        read_narrow(&s->factors, t->type, lanes, n, code, to);
    } else if (t->type == OF_INT32) {
        read_lanes((int32_t *)to, lanes, n);
    } else {
        read_lanes(sums, lanes, n);
        take_wide(&s->factors, t->type, sums, n, code, to);
    }
}
