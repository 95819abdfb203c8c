/* Frames, and the queues of links: the order in which frames leave, and which are dropped. */

enum { FRAME_BYTES = 2048, TURN_BYTES = 1514 /* of a flow's turn: a full Ethernet frame */ };

/* A frame, shared by `users`; of `room` bytes. */
struct frame {
    struct frame *next;
    uint32_t users, length, room;
    uint8_t bytes[];
};

/* Frames that are not in use, of FRAME_BYTES each. */
struct pool {
    struct frame *free;
};

static struct frame *new_frame(struct pool *pool, const uint8_t *bytes, uint32_t length)
{
    struct frame *frame = length <= FRAME_BYTES ? pool->free : NULL;
    if (frame) {
        pool->free = frame->next;
    } else {
        uint32_t room = length <= FRAME_BYTES ? FRAME_BYTES : length;
        frame = resized(NULL, 1, sizeof *frame + room);
        frame->room = room;
    }
    frame->next = NULL;
    frame->users = 1;
    frame->length = length;
    memcpy(frame->bytes, bytes, length);
    return frame;
}

static void release(struct pool *pool, struct frame *frame)
{
    if (--frame->users)
        return;
    if (frame->room == FRAME_BYTES) {
        frame->next = pool->free;
        pool->free = frame;
    } else {
        free(frame);
    }
}

/* Return a frame that nobody else uses, with the bytes of one that is given up. */
static struct frame *own(struct pool *pool, struct frame *frame)
{
    if (frame->users == 1)
        return frame;
    frame->users--;
    return new_frame(pool, frame->bytes, frame->length);
}

static int is_ipv4(const struct frame *frame)
{
    return frame->length > TARGET_PORT + 1 && big16(frame->bytes + ETHERTYPE) == ETHERTYPE_IPV4;
}

/* Whether an IPv4 frame is for the UDP port of hopsum. */
static int is_ours(const struct frame *frame)
{
    return frame->bytes[PROTOCOL] == UDP_PROTOCOL && big16(frame->bytes + TARGET_PORT) == UDP_PORT;
}

/* Whether a frame is one of hopsum's (hopsum.protocol.wire.is_hopsum). */
static int is_hopsum(const struct frame *frame)
{
    const uint8_t *bytes = frame->bytes;
    return frame->length >= STACK && is_ipv4(frame) && bytes[IPV4] == 0x45 && bytes[IPV4 + 6] == 0x40
        && !bytes[IPV4 + 7] && is_ours(frame) && bytes[KIND] >> 4 == VERSION;
}

/* First come, first served. */
struct fifo {
    struct frame *first, *last;
    uint64_t count;
};

static void append(struct fifo *fifo, struct frame *frame)
{
    frame->next = NULL;
    if (fifo->count++)
        fifo->last->next = frame;
    else
        fifo->first = frame;
    fifo->last = frame;
}

static struct frame *take_from(struct fifo *fifo)
{
    struct frame *frame = fifo->first;
    fifo->first = frame->next;
    fifo->count--;
    return frame;
}

/* A job, a TCP connection, or the rest, at a host whose flows take turns; `left`: bytes of its turn. */
struct turn {
    struct turn *next;
    struct fifo waiting;
    int64_t left;
    uint8_t key[12], key_bytes;
};

/* A queue that holds QUEUE_FRAMES; or, if `fair`, what comes, of which each flow has its turn, by bytes: deficit round
 * robin (Shreedhar and Varghese, SIGCOMM '95), as by fq_codel on Linux and on hosts in Mininet. There windows limit what
 * waits: sockets keep what a queue cannot take. */
struct queue {
    struct fifo waiting;
    struct turn *turns, *free;
};

static struct turn *turn_of(struct queue *queue, const struct frame *frame)
{
    const uint8_t *key = frame->bytes;
    uint8_t bytes = 0;
    if (is_ipv4(frame) && frame->bytes[PROTOCOL] == TCP_PROTOCOL)
        key += SOURCE_IP, bytes = 12;
    else if (frame->length >= KEY + 2 && is_ipv4(frame) && is_ours(frame))
        key += KEY, bytes = 2;
    struct turn **at = &queue->turns;
    for (; *at; at = &(*at)->next)
        if ((*at)->key_bytes == bytes && !memcmp((*at)->key, key, bytes))
            return *at;
    struct turn *turn = queue->free;
    if (turn)
        queue->free = turn->next;
    else
        turn = resized(NULL, 1, sizeof *turn);
    memset(turn, 0, sizeof *turn);
    memcpy(turn->key, key, bytes);
    turn->key_bytes = bytes;
    turn->left = TURN_BYTES;
    return *at = turn;
}

/* Queue a frame; 0 if there is no room. */
static int put(struct queue *queue, struct frame *frame, int fair)
{
    if (fair)
        append(&turn_of(queue, frame)->waiting, frame);
    else if (queue->waiting.count >= QUEUE_FRAMES)
        return 0;
    else
        append(&queue->waiting, frame);
    return 1;
}

/* Return the frame whose turn it is; NULL if none waits. */
static struct frame *take(struct queue *queue)
{
    if (queue->waiting.count)
        return take_from(&queue->waiting);
    struct turn *turn;
    while ((turn = queue->turns)) {
        if (turn->waiting.first->length <= turn->left) {
            struct frame *frame = take_from(&turn->waiting);
            turn->left -= frame->length;
            if (!turn->waiting.count) {
                queue->turns = turn->next;
                turn->next = queue->free;
                queue->free = turn;
            }
            return frame;
        }
        turn->left += TURN_BYTES;
        if (turn->next) { /* to the end of the round */
            struct turn *last = turn;
            while (last->next)
                last = last->next;
            queue->turns = turn->next;
            last->next = turn;
            turn->next = NULL;
        }
    }
    return NULL;
}

static void empty(struct queue *queue)
{
    struct frame *frame;
    while ((frame = take(queue)))
        free(frame);
    for (struct turn *turn; (turn = queue->free); free(turn))
        queue->free = turn->next;
}

/* Return the number of a frame's queue at a link: 0 if urgent, else its level plus 1; frames other than IPv4 have the
 * lowest. The bit for urgent ones has no meaning in frames of others (hopsum.protocol.tos). */
static uint32_t queue_of(const struct frame *frame)
{
    if (!is_ipv4(frame))
        return LEVELS;
    uint8_t tos = frame->bytes[TOS];
    return tos & URGENT && is_ours(frame) ? 0 : (uint32_t)(LEVELS - (tos >> 5));
}

/* Return the switch's priority that corresponds to a queue. */
static uint32_t priority_of(uint32_t queue)
{
    return LEVELS - (queue ? queue : 1);
}

uint32_t frame_priority(const uint8_t *bytes, uint32_t length)
{
    struct pool pool = {NULL};
    struct frame *frame = new_frame(&pool, bytes, length);
    uint32_t priority = priority_of(queue_of(frame));
    free(frame);
    return priority;
}
