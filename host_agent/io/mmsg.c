/* Frames in batches over a packet socket: one system call for many frames, and none to receive through a ring. port.py
 * puts flow.h before this text, and defines KEY, the offset of a frame's job and tree. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

enum { BATCH = 64 };

/* Maximum interval between receptions in a steady stream, in seconds. Taking in one frame costs almost
 * what ten cost together, and a stream's window covers the delay; a lone frame is taken in at once.
 * (Network cards moderate their interrupts in the same way.) */
#define MODERATION 0.001
/* A stream is steady if a moderation interval brings at least this many frames. */
#define STEADY_FRAMES 2
/* A burst of up to this many frames does not announce more: a small call is a check and its values. */
#define LONE_FRAMES 2
/* Maximum interval if more frames can be deferred: as many are awaited, by the stream's rate. */
#define DEEP 0.010

/* Interfaces that frames leave by: those of `count` trees, by key as in a flow, and `home` for all others. With
 * home 0 the socket is bound to the only one. */
struct links {
    int64_t home, count;
    const int64_t *keys, *interfaces;
};

/* Return a frame's key, -1 if it is too short for one. */
static int64_t key_within(const uint8_t *frame, uint32_t length)
{
    return length < KEY + 3 ? -1 : key_of(frame);
}

static int link_of(const struct links *links, const uint8_t *frame, uint32_t length)
{
    int64_t key = key_within(frame, length);
    for (int64_t i = 0; i < links->count; i++)
        if (links->keys[i] == key)
            return (int)links->interfaces[i];
    return (int)links->home;
}

/* Send n frames that lie `stride` bytes apart. Returns how many the kernel took; fewer than n when
 * the socket's buffer or the queue is full; -errno on another error before the first. Never blocks.
 * What is sent while an interface is down is lost, as on a link without a carrier; so it is if one of several is
 * removed. */
static int send_frames(int fd, const struct links *links, const uint8_t *frames, uint32_t n, uint32_t stride,
                       const uint32_t *lengths)
{
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    struct sockaddr_ll ways[BATCH];
    uint32_t sent = 0;
    while (sent < n) {
        uint32_t batch = n - sent < BATCH ? n - sent : BATCH;
        memset(messages, 0, sizeof messages[0] * batch);
        for (uint32_t i = 0; i < batch; i++) {
            parts[i].iov_base = (void *)(frames + (size_t)(sent + i) * stride);
            parts[i].iov_len = lengths[sent + i];
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
            if (!links->home)
                continue;
            ways[i] = (struct sockaddr_ll){.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
            ways[i].sll_ifindex = link_of(links, parts[i].iov_base, lengths[sent + i]);
            messages[i].msg_hdr.msg_name = &ways[i];
            messages[i].msg_hdr.msg_namelen = sizeof ways[i];
        }
        int done = sendmmsg(fd, messages, batch, MSG_DONTWAIT);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)
                return (int)sent;
            if (errno != ENETDOWN && !(links->home && errno == ENXIO))
                return sent ? (int)sent : -errno;
            done = 1;
        }
        sent += (uint32_t)done;
    }
    return (int)sent;
}

/* Send n frames of `length` bytes, as send_frames does. */
int packet_send(int fd, const struct links *links, const uint8_t *frames, uint32_t n, uint32_t length, uint32_t stride)
{
    uint32_t lengths[BATCH], sent = 0;
    for (uint32_t i = 0; i < BATCH; i++)
        lengths[i] = length;
    while (sent < n) {
        uint32_t batch = n - sent < BATCH ? n - sent : BATCH;
        int done = send_frames(fd, links, frames + (size_t)sent * stride, batch, stride, lengths);
        if (done < 0)
            return sent ? (int)sent : done;
        sent += (uint32_t)done;
        if ((uint32_t)done < batch)
            break;
    }
    return (int)sent;
}

/* Receive up to n frames into rows of `stride` bytes; lengths[i] is the frame's real length,
 * which is above `stride` when it was cut. Returns the number of frames, -errno on error.
 * Never blocks. */
int packet_receive(int fd, uint8_t *rows, uint32_t n, uint32_t stride, uint32_t *lengths)
{
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    uint32_t received = 0;
    while (received < n) {
        uint32_t batch = n - received < BATCH ? n - received : BATCH;
        memset(messages, 0, sizeof messages[0] * batch);
        for (uint32_t i = 0; i < batch; i++) {
            parts[i].iov_base = rows + (size_t)(received + i) * stride;
            parts[i].iov_len = stride;
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        int done = recvmmsg(fd, messages, batch, MSG_DONTWAIT | MSG_TRUNC, NULL);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK)
                return (int)received;
            return received ? (int)received : -errno;
        }
        for (int i = 0; i < done; i++)
            lengths[received + (uint32_t)i] = messages[i].msg_len;
        received += (uint32_t)done;
        if ((uint32_t)done < batch)
            break;
    }
    return (int)received;
}

/* Slots that the kernel fills with frames and this process empties (PACKET_RX_RING, TPACKET_V2: packet(7));
 * p4switch/packet_io/receive_ring.py makes it. `next`: the slot that is filled next, or has been. */
struct receive_ring {
    uint8_t *slots;
    uint32_t count, slot_bytes, next;
};

/* Find up to n received frames that lie in slots one behind the other; returns how many. `frames`: the first one. A
 * frame that was too long for its slot, and so is nobody's, has length 0. */
static uint32_t find_frames(const struct receive_ring *ring, uint32_t n, uint32_t *lengths, uint8_t **frames)
{
    uint32_t most = ring->count - ring->next < n ? ring->count - ring->next : n, found = 0, at = 0;
    for (; found < most; found++) {
        uint8_t *start = ring->slots + (size_t)(ring->next + found) * ring->slot_bytes;
        struct tpacket2_hdr *slot = (struct tpacket2_hdr *)start;
        if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) || (found && slot->tp_mac != at))
            break;
        if (!found)
            *frames = start + (at = slot->tp_mac);
        lengths[found] = slot->tp_snaplen < slot->tp_len ? 0 : slot->tp_len;
    }
    return found;
}

/* Give the first n slots back to the kernel. */
static void release_frames(struct receive_ring *ring, uint32_t n)
{
    for (; n; n--) {
        struct tpacket2_hdr *slot = (struct tpacket2_hdr *)(ring->slots + (size_t)ring->next * ring->slot_bytes);
        __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        ring->next = (ring->next + 1) % ring->count;
    }
}

/* Copy up to n frames out of a ring into rows, as packet_receive does out of a socket. */
int packet_take(struct receive_ring *ring, uint8_t *rows, uint32_t n, uint32_t stride, uint32_t *lengths)
{
    uint8_t *frames = NULL;
    uint32_t taken = 0, found;
    while ((found = find_frames(ring, n - taken, lengths + taken, &frames))) {
        for (uint32_t i = 0; i < found; i++)
            memcpy(rows + (size_t)(taken + i) * stride, frames + (size_t)i * ring->slot_bytes, lengths[taken + i]);
        release_frames(ring, found);
        taken += found;
    }
    return (int)taken;
}

/* Why packet_run returned. */
enum { DUE, OTHERS, FINISHED, LEFT, UNSENT };

struct run {
    int64_t fd, others;
    const struct links *links;
    struct flow **flows;
    /* Or NULL: frames are received into rows. */
    struct receive_ring *ring;
    /* Frames that are left when packet_run returns. */
    uint8_t *rows;
    uint32_t *lengths;
    int64_t count, limit, stride;
    /* The last batch: in the ring, or in rows; and how far its frames are apart. */
    uint8_t *batch;
    int64_t apart;
    /* `deferrable`: as in a flow, for frames of none. */
    double until, deferrable;
    /* When frames were received last, and the pause until they are received again. */
    double taken_at, pause;
    /* Frames of the last batch; of these, processed; and of those in `out`, sent. */
    int64_t received, processed, sent;
    struct output out;
};

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct flow *flow_of(const struct run *r, const uint8_t *frame, uint32_t length)
{
    if (length > r->stride)
        return NULL;
    int64_t key = key_within(frame, length);
    for (int64_t i = 0; i < r->count; i++)
        if (r->flows[i]->key == key)
            return r->flows[i];
    return NULL;
}

/* Count what a flow has made since there were `before` frames. */
static void count_bytes(const struct run *r, struct flow *flow, uint64_t before)
{
    for (uint64_t i = before; i < r->out.made; i++)
        flow->sent_bytes += r->out.lengths[i];
}

static int has_room(const struct run *r, const struct flow *flow)
{
    return room_left(&r->out) >= (uint64_t)flow->most_output;
}

/* Take in the received frames, in order, up to the first of no flow, or as far as there is room. Returns whether
 * Python has something to do now. */
static int process(struct run *r, double now)
{
    int64_t finished = 0;
    while (r->processed < r->received) {
        const uint8_t *frame = r->batch + r->processed * r->apart;
        uint32_t length = r->lengths[r->processed], n = 1;
        struct flow *flow = flow_of(r, frame, length);
        uint64_t before = r->out.made;
        if (!flow || !has_room(r, flow))
            break;
        while (r->processed + n < r->received && r->lengths[r->processed + n] == length
               && !memcmp(frame + n * r->apart + KEY, frame + KEY, 3))
            n++;
        r->processed += flow->receive(flow, frame, n, length, (uint64_t)r->apart, now, &r->out);
        count_bytes(r, flow, before);
        finished |= flow->finished;
    }
    return finished != 0;
}

/* Let flows take calls of processes; returns whether one did. `finished`: as of `process`. */
static int take_calls(struct run *r, double now, int *finished)
{
    int taken = 0;
    for (int64_t i = 0; i < r->count; i++) {
        struct flow *flow = r->flows[i];
        uint64_t before = r->out.made;
        if (!flow->call || !has_room(r, flow) || !flow->call(flow, now, &r->out))
            continue;
        count_bytes(r, flow, before);
        *finished |= flow->finished != 0;
        taken = 1;
    }
    return taken;
}

/* Let flows do what is due. `finished`: as of `process`. */
static void expire(struct run *r, double now, int *finished)
{
    for (int64_t i = 0; i < r->count; i++) {
        struct flow *flow = r->flows[i];
        uint64_t before = r->out.made;
        if (flow->due > now || !flow->tick || !has_room(r, flow))
            continue;
        flow->tick(flow, now, &r->out);
        count_bytes(r, flow, before);
        *finished |= flow->finished != 0;
    }
}

/* Choose the pause until the next reception from the number of frames received now. */
void packet_moderate(struct run *r, double now)
{
    double elapsed = now - r->taken_at > MODERATION ? now - r->taken_at : MODERATION;
    double taken = (double)r->received, deferrable = r->deferrable;
    for (int64_t i = 0; i < r->count; i++)
        deferrable = fmin(deferrable, (double)r->flows[i]->deferrable);
    r->taken_at = now;
    r->pause = taken > LONE_FRAMES && taken * MODERATION >= STEADY_FRAMES * elapsed ? MODERATION : 0;
    if (deferrable > 0 && taken >= STEADY_FRAMES && elapsed <= 2 * DEEP)
        r->pause = fmax(r->pause, fmin(deferrable * elapsed / taken, DEEP));
}

static struct timespec span(double seconds)
{
    seconds = fmin(fmax(seconds, 0), 1e6);
    return (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - floor(seconds)))};
}

/* Return when something is due, by `until` or a flow's timer. */
static double next_due(const struct run *r)
{
    double due = r->until;
    for (int64_t i = 0; i < r->count; i++)
        due = fmin(due, r->flows[i]->due);
    return due;
}

/* Sleep until one of the descriptors is readable; returns as ppoll. */
static int wait_for(struct pollfd *ready, nfds_t count, double wait)
{
    struct timespec timeout = span(wait);
    return ppoll(ready, count, &timeout, NULL);
}

/* Return the error of a socket, which is readable until it is taken. */
static int take_error(int fd)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
}

/* Receive the next batch; returns its size, or -errno. */
static int receive_batch(struct run *r)
{
    if (r->ring) {
        r->apart = r->ring->slot_bytes;
        uint32_t found = find_frames(r->ring, (uint32_t)r->limit, r->lengths, &r->batch);
        return found ? (int)found : -take_error((int)r->fd);
    }
    r->batch = r->rows;
    r->apart = r->stride;
    return packet_receive((int)r->fd, r->rows, (uint32_t)r->limit, (uint32_t)r->stride, r->lengths);
}

/* Give the last batch back, but for what is left of it, which goes to the first rows. */
static void end_batch(struct run *r)
{
    int64_t left = r->received - r->processed;
    const uint8_t *first = r->batch + r->processed * r->apart;
    memmove(r->lengths, r->lengths + r->processed, (size_t)left * sizeof *r->lengths);
    for (int64_t i = 0; i < left; i++)
        memmove(r->rows + i * r->stride, first + i * r->apart, r->lengths[i] < r->stride ? r->lengths[i] : r->stride);
    if (r->ring)
        release_frames(r->ring, (uint32_t)r->received);
    r->processed = 0;
    r->received = left;
}

/* See packet_run; the last batch may be left. */
static int run_flows(struct run *r)
{
    struct pollfd ready[2] = {{.fd = (int)r->others, .events = POLLIN}, {.fd = (int)r->fd, .events = POLLIN}};
    r->received = r->processed = 0;
    for (;;) {
        int others = 0, n = 0;
        r->out.made = 0;
        r->sent = 0;
        if (r->processed == r->received) {
            end_batch(r);
            int events = wait_for(ready, 2, next_due(r) - seconds());
            if (events < 0)
                return errno == EINTR ? OTHERS : -errno;
            others = ready[0].revents != 0;
            if (ready[1].revents) {
                double early = r->taken_at + r->pause - seconds();
                if (early > 0)
                    wait_for(ready, 1, early);
                n = receive_batch(r);
                if (n < 0 && n != -ENETDOWN)
                    return n;
                r->received = n > 0 ? n : 0;
            }
        }
        double now = seconds();
        int finished = process(r, now);
        if (n > 0)
            packet_moderate(r, now);
        /* What else may be readable there is seen at the next poll. */
        if (others && take_calls(r, now, &finished))
            others = 0;
        expire(r, now, &finished);
        if (r->out.made) {
            n = send_frames((int)r->fd, r->links, r->out.frames, (uint32_t)r->out.made, (uint32_t)r->out.stride,
                            r->out.lengths);
            if (n < 0)
                return n;
            r->sent = n;
            if ((uint64_t)n < r->out.made)
                return UNSENT;
        }
        if (r->processed < r->received && !flow_of(r, r->batch + r->processed * r->apart, r->lengths[r->processed]))
            return LEFT;
        if (others)
            return OTHERS;
        if (finished)
            return FINISHED;
        if (now >= r->until && r->processed == r->received)
            return DUE;
    }
}

/* Receive frames, give those of flows to these, and send what they make, until `until`, until the descriptor `others`
 * is readable but for calls that flows take, until Python has something to do, at a frame of no flow, or when the
 * kernel does not take all: DUE to UNSENT, or -errno. */
int packet_run(struct run *r)
{
    int why = run_flows(r);
    end_batch(r);
    return why;
}
