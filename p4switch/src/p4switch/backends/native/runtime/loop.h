/* The packet loop: packet sockets in, the switch, packet sockets out, without Python.

   A packet thread sleeps in epoll, which tells of new frames only (EPOLLET), takes batches of up
   to 64 frames from a port through ingress, and queues through egress into the port's stage, which
   sendmmsg empties. A port whose socket is full keeps its stage and its queues (tail drop beyond
   the queue depth) until EPOLLOUT, or for a millisecond if the kernel said ENOBUFS, which no event
   ends; other ports go on. Frames for the CPU port go into a ring that Python empties when the
   event descriptor `cpu_event` says so; frames from it come in by p4_loop_inject.

   With several packet threads, each receives from ports of its own. The program runs under the
   switch's lock, so its state is as exact as with one; system calls that receive and send run
   beside it. One thread at a time runs egress for a port and sends its stage (`sending`), so that
   frames leave in the order of their queue. */
#ifndef P4_LOOP_H
#define P4_LOOP_H

#include <errno.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "control.h"

#define BATCH 64
#define FRAME_ROOM 65536
/* Between the frames of a batch: rooms a power of two apart would share their sets of the caches. */
#define FRAME_STRIDE (FRAME_ROOM + 1600)
#define VLAN_ROOM 4
#define CPU_RING_FRAMES 4096
/* What the kernel counts for a frame of 600 to 1500 bytes: a block of 2048, and the sk_buff. */
#define KERNEL_FRAME 2304
#define WAKE_DATA 0xffffffffu
/* Rounds over the queues before a thread looks at its own ports again: others fill them, too. */
#define PUMP_ROUNDS 4
/* Attempts to take the lock before a packet thread sleeps: some 50 microseconds. */
#define SPINS 1000

typedef struct {
    u64 rx_packets, rx_bytes, tx_packets, tx_bytes;
    u64 rx_errors, tx_errors;  /* frames cut by the kernel; frames that the interface refused */
} port_counts;

typedef struct {
    int fd;
    u32 thread;                /* whose epoll tells of it */
    u8 open, blocked, watches_output;
    u8 receiving, sending;     /* a thread uses the descriptor without the lock */
    u32 sent;                  /* frames of the stage that are gone */
    output stage;
    port_counts counts;
} loop_port;

/* What one packet thread sleeps in, and what its system calls fill. */
typedef struct {
    struct packet_loop *loop;
    pthread_t id;
    int epoll, wake_event, failed;
    u8 pumps;                  /* it left frames in queues */
    u64 unread[PORTS / 64];    /* ports that may have frames; epoll tells of new ones only */
    u8 *frames;                /* BATCH of FRAME_ROOM, FRAME_STRIDE apart */
    struct mmsghdr receive[BATCH], send[BATCH];
    struct iovec receive_parts[BATCH], send_parts[BATCH];
    u8 control[BATCH][CMSG_SPACE(sizeof(struct tpacket_auxdata))];
} loop_thread;

typedef struct packet_loop {
    p4_switch *sw;
    loop_thread *threads;
    u32 thread_count, next_thread;
    int cpu_event;
    u32 cpu_port;
    atomic_int stopping;
    struct timespec start;
    loop_port ports[PORTS];
    u64 retrying[PORTS / 64];  /* blocked ports that no event will free */
    u64 waiting[PORTS / 64];   /* ports whose interface may hold frames back */
    port_counts cpu;           /* rx: injected; tx: taken by Python */
    u64 unconnected;           /* frames for ports that have no socket */
    packet *injected, **injected_last;
    output cpu_ring, nowhere;
    u64 cpu_lost;
} packet_loop;

EXPORT void p4_loop_destroy(packet_loop *l);

static u64 loop_now(const packet_loop *l) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)((t.tv_sec - l->start.tv_sec) * 1000000 + (t.tv_nsec - l->start.tv_nsec) / 1000);
}

/* 0, or -1 without memory or descriptors. */
static int thread_prepare(packet_loop *l, loop_thread *t) {
    t->loop = l;
    t->frames = malloc((size_t)BATCH * FRAME_STRIDE);
    t->wake_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wake = {.events = EPOLLIN, .data.u32 = WAKE_DATA};
    if (!t->frames || t->wake_event < 0 || t->epoll < 0
        || epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->wake_event, &wake))
        return -1;
    for (u32 i = 0; i < BATCH; i++) {
        t->receive_parts[i] = (struct iovec){t->frames + (size_t)i * FRAME_STRIDE + VLAN_ROOM,
                                             FRAME_ROOM - VLAN_ROOM};
        t->receive[i].msg_hdr = (struct msghdr){
            .msg_iov = &t->receive_parts[i], .msg_iovlen = 1,
            .msg_control = t->control[i], .msg_controllen = sizeof t->control[i]};
    }
    return 0;
}

EXPORT packet_loop *p4_loop_create(p4_switch *sw, u32 cpu_port, u32 threads) {
    packet_loop *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->sw = sw;
    l->cpu_port = cpu_port;
    l->injected_last = &l->injected;
    l->cpu_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->threads = calloc(threads, sizeof *l->threads);
    int failed = l->cpu_event < 0 || !l->threads;
    while (!failed && l->thread_count < threads)
        failed = thread_prepare(l, &l->threads[l->thread_count++]);
    if (failed) {
        p4_loop_destroy(l);
        return NULL;
    }
    clock_gettime(CLOCK_MONOTONIC, &l->start);
    switch_lock(sw);
    l->start.tv_sec -= (time_t)(sw->now / 1000000);  /* the clock never goes back */
    sw->loop = l;
    switch_unlock(sw);
    return l;
}

EXPORT void p4_loop_destroy(packet_loop *l) {
    switch_lock(l->sw);
    l->sw->loop = NULL;
    l->sw->out = &l->sw->batch;
    memset(l->sw->staged, 0, sizeof l->sw->staged);
    memset(l->sw->waiting, 0, sizeof l->sw->waiting);
    for (packet *p = l->injected, *next; p; p = next) {
        next = p->next;
        packet_free(l->sw, p);
    }
    for (u32 port = 0; port < PORTS; port++) {
        packet *p;
        output_free(&l->ports[port].stage);
        while ((p = dequeue(l->sw, port))) packet_free(l->sw, p);
    }
    switch_unlock(l->sw);
    output_free(&l->cpu_ring);
    output_free(&l->nowhere);
    for (u32 i = 0; i < l->thread_count; i++) {
        loop_thread *t = &l->threads[i];
        if (t->epoll >= 0) close(t->epoll);
        if (t->wake_event >= 0) close(t->wake_event);
        free(t->frames);
    }
    if (l->cpu_event >= 0) close(l->cpu_event);
    free(l->threads);
    free(l);
}

static void thread_wake(const loop_thread *t) {
    u64 one = 1;
    while (write(t->wake_event, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void mark_port(u64 *ports, u32 port, int on) {
    u64 bit = 1ull << (port % 64);
    if (on) ports[port / 64] |= bit;
    else ports[port / 64] &= ~bit;
}

static int any_port(const u64 *ports) {
    u64 any = 0;
    for (u32 word = 0; word < PORTS / 64; word++) any |= ports[word];
    return any != 0;
}

/* EPOLLET: a port that was read empty need not be asked again before epoll sleeps. The lock is
   held; asking for output anew also tells of room there has been since the socket was full. */
static void loop_watch_output(packet_loop *l, u32 port, int wanted) {
    loop_port *lp = &l->ports[port];
    if (!lp->watches_output && !wanted) return;
    lp->watches_output = (u8)wanted;
    struct epoll_event event = {.events = EPOLLET | EPOLLIN | (wanted ? EPOLLOUT : 0),
                                .data.u32 = port};
    epoll_ctl(l->threads[lp->thread].epoll, EPOLL_CTL_MOD, lp->fd, &event);
}

static void stage_reset(packet_loop *l, u32 port) {
    loop_port *lp = &l->ports[port];
    lp->stage.used = lp->stage.count = lp->sent = 0;
    lp->blocked = 0;
    mark_port(l->retrying, port, 0);
    l->sw->staged[port] = 0;
    if (lp->open) loop_watch_output(l, port, 0);
}

/* 0, or an errno. The descriptor stays the caller's. */
EXPORT int p4_loop_add_port(packet_loop *l, u32 port, int fd) {
    switch_lock(l->sw);
    loop_port *lp = &l->ports[port];
    struct epoll_event event = {.events = EPOLLET | EPOLLIN, .data.u32 = port};
    u32 thread = l->next_thread % l->thread_count;
    int epoll = l->threads[thread].epoll;
    int failed = lp->open ? EEXIST : epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) ? errno : 0;
    if (!failed) {
        l->next_thread++;
        lp->thread = thread;
        lp->fd = fd;
        lp->open = 1;
        lp->blocked = lp->watches_output = 0;
    }
    switch_unlock(l->sw);
    return failed;
}

/* Afterwards the loop does not touch the port's descriptor; frames for it are lost. */
EXPORT void p4_loop_remove_port(packet_loop *l, u32 port) {
    switch_lock(l->sw);
    loop_port *lp = &l->ports[port];
    if (lp->open) {
        loop_thread *t = &l->threads[lp->thread];
        epoll_ctl(t->epoll, EPOLL_CTL_DEL, lp->fd, NULL);
        lp->open = 0;
        while (lp->receiving || lp->sending) {  /* system calls that do not block */
            switch_unlock(l->sw);
            sched_yield();
            switch_lock(l->sw);
        }
        mark_port(t->unread, port, 0);
        l->unconnected += lp->stage.count - lp->sent;
        stage_reset(l, port);
    }
    switch_unlock(l->sw);
}

/* As switch_lock. Packet threads hold it for microseconds, and to sleep and wake takes longer. */
static void spin_lock(pthread_mutex_t *lock) {
    for (u32 i = 0; i < SPINS; i++) {
        if (!pthread_mutex_trylock(lock)) return;
#if defined __x86_64__ || defined __i386__
        __builtin_ia32_pause();
#endif
    }
    pthread_mutex_lock(lock);
}

static void loop_lock(packet_loop *l) {
    if (l->thread_count == 1) {
        switch_lock(l->sw);
        return;
    }
    spin_lock(&l->sw->gate);
    spin_lock(&l->sw->lock);
    pthread_mutex_unlock(&l->sw->gate);
}

/* --- sending. The lock is held, but for the system call. */

/* Sends staged packets until all are sent or the socket is full. */
static void stage_send(loop_thread *t, u32 port) {
    packet_loop *l = t->loop;
    loop_port *lp = &l->ports[port];
    output *o = &lp->stage;
    lp->sending = 1;
    while (lp->open && lp->sent < o->count) {
        u32 count = o->count - lp->sent < BATCH ? o->count - lp->sent : BATCH;
        for (u32 i = 0; i < count; i++) {
            u32 at = lp->sent + i;
            t->send_parts[i] = (struct iovec){o->bytes + o->offsets[at], o->lengths[at]};
            t->send[i].msg_hdr =
                (struct msghdr){.msg_iov = &t->send_parts[i], .msg_iovlen = 1};
        }
        switch_unlock(l->sw);
        int done = sendmmsg(lp->fd, t->send, count, MSG_DONTWAIT), failed = errno;
        loop_lock(l);
        for (int i = 0; i < done; i++) {
            lp->counts.tx_packets++;
            lp->counts.tx_bytes += o->lengths[lp->sent++];
        }
        if (done > 0) continue;
        if (failed == EINTR) continue;
        if (lp->open && (failed == EAGAIN || failed == EWOULDBLOCK || failed == ENOBUFS)) {
            lp->sending = 0;
            lp->blocked = 1;
            mark_port(l->retrying, port, failed == ENOBUFS);
            loop_watch_output(l, port, failed != ENOBUFS);
            l->sw->staged[port] = o->count - lp->sent;
            return;
        }
        lp->counts.tx_errors++;  /* too long, or the interface is down: this frame is lost */
        lp->sent++;
    }
    if (!lp->open) l->unconnected += o->count - lp->sent;
    stage_reset(l, port);
    lp->sending = 0;
}

/* Looks how much of what was sent the interfaces still hold back. The kernel says how many bytes,
   not which: where its queues have priorities, those of the highest have left. */
static void look_at_interfaces(packet_loop *l) {
    p4_switch *sw = l->sw;
    for (u32 word = 0; word < PORTS / 64; word++)
        for (u64 left = l->waiting[word]; left; left &= left - 1) {
            u32 port = word * 64 + (u32)__builtin_ctzll(left), total = 0;
            u32 *waiting = sw->waiting[port];
            int bytes = 0;
            if (!l->ports[port].open || ioctl(l->ports[port].fd, SIOCOUTQ, &bytes)) bytes = 0;
            u32 held = ((u32)bytes + KERNEL_FRAME - 1) / KERNEL_FRAME;
            for (u32 i = 0; i < LARGEST_PRIORITIES; i++) total += waiting[i];
            u32 gone = total > held ? total - held : 0;
            for (u32 i = LARGEST_PRIORITIES; i-- > 0;) {
                u32 of_these = gone < waiting[i] ? gone : waiting[i];
                waiting[i] -= of_these;
                gone -= of_these;
            }
            if (!held) mark_port(l->waiting, port, 0);
        }
}

/* --- the CPU port */

static void cpu_take(packet_loop *l, const output *from) {
    for (u32 i = 0; i < from->count; i++) {
        output *ring = &l->cpu_ring;
        size_t start = ring->used;
        if (ring->count >= CPU_RING_FRAMES || output_room(ring, from->lengths[i])) {
            l->cpu_lost++;
            continue;
        }
        memcpy(ring->bytes + start, from->bytes + from->offsets[i], from->lengths[i]);
        ring->used += from->lengths[i];
        if (output_frame(ring, start, (u16)l->cpu_port)) {
            ring->used = start;
            l->cpu_lost++;
            continue;
        }
        l->cpu.tx_packets++;
        l->cpu.tx_bytes += from->lengths[i];
    }
    u64 one = 1;
    while (from->count && write(l->cpu_event, &one, sizeof one) < 0 && errno == EINTR) {}
}

/* The frames for the CPU change places with `taken`, and are the caller's. */
EXPORT u64 p4_loop_take_cpu(packet_loop *l, output *taken, batch_result *result) {
    u64 events;
    switch_lock(l->sw);
    while (read(l->cpu_event, &events, sizeof events) < 0 && errno == EINTR) {}
    output old = *taken;
    *taken = l->cpu_ring;
    l->cpu_ring = old;
    l->cpu_ring.used = l->cpu_ring.count = 0;
    *result = (batch_result){taken->count, taken->used, taken->bytes,
                             taken->offsets, taken->lengths, taken->ports};
    switch_unlock(l->sw);
    return result->count;
}

EXPORT output *p4_output_create(void) { return calloc(1, sizeof(output)); }
EXPORT void p4_output_destroy(output *o) {
    output_free(o);
    free(o);
}

static buffer *buffer_of(const u8 *bytes, u32 length) {
    buffer *b = malloc(sizeof *b + length);
    if (!b) return NULL;
    b->users = 0;
    b->size = length;
    memcpy(b->bytes, bytes, length);
    return b;
}

/* Receives a frame at the CPU port. 0, or -1 without memory. */
EXPORT int p4_loop_inject(packet_loop *l, const u8 *bytes, u32 length) {
    buffer *b = buffer_of(bytes, length);
    if (!b) return -1;
    switch_lock(l->sw);
    l->sw->now = loop_now(l);
    packet *p = packet_arrives(l->sw, l->cpu_port, b, b->bytes, length);
    if (p) {
        p->next = NULL;
        *l->injected_last = p;
        l->injected_last = &p->next;
        l->cpu.rx_packets++;
        l->cpu.rx_bytes += length;
    } else {
        free(b);
    }
    switch_unlock(l->sw);
    thread_wake(&l->threads[0]);
    return p ? 0 : -1;
}

/* --- from queues to sockets */

/* Egress for every port whose socket takes frames, until all queues but those of full ports are
   empty. Ports that another thread sends from are left to it. */
static void loop_pump(loop_thread *t) {
    packet_loop *l = t->loop;
    p4_switch *sw = l->sw;
    int progress = 1;
    for (u32 round = 0; progress && (l->thread_count == 1 || round < PUMP_ROUNDS); round++) {
        progress = 0;
        for (u32 word = 0; word < PORTS / 64; word++)
            for (u64 busy = sw->busy_ports[word]; busy; busy &= busy - 1) {
                u32 port = word * 64 + (u32)__builtin_ctzll(busy);
                loop_port *lp = &l->ports[port];
                packet *p;
                if (lp->blocked || lp->sending) continue;
                progress = 1;
                int to_cpu = port == l->cpu_port;
                sw->out = to_cpu || !lp->open ? &l->nowhere : &lp->stage;
                while (sw->out->count < BATCH && (p = dequeue(sw, port))) {
                    if (sw->out == &lp->stage) sw->waiting[port][std_get_priority(p)]++;
                    egress_packet(sw, p, port);
                }
                if (sw->out == &lp->stage) {
                    mark_port(l->waiting, port, 1);
                    stage_send(t, port);
                } else {
                    if (to_cpu) cpu_take(l, &l->nowhere);
                    else l->unconnected += l->nowhere.count;
                    l->nowhere.used = l->nowhere.count = 0;
                }
            }
        if (sw->again) {
            ingress_again(sw);
            progress = 1;
        }
    }
    t->pumps = (u8)progress;
}

/* Packets of full ports outlive the batch: give them bytes of their own. */
static void loop_keep_queued(packet_loop *l) {
    p4_switch *sw = l->sw;
    for (u32 word = 0; word < PORTS / 64; word++)
        for (u64 busy = sw->busy_ports[word]; busy; busy &= busy - 1) {
            u32 port = word * 64 + (u32)__builtin_ctzll(busy);
            for (u32 priority = 0; priority < sw->priorities; priority++)
                for (packet *p = sw->queues[port][priority].first; p; p = p->next) {
                    if (p->owner) continue;
                    buffer *b = buffer_of(p->data, p->length);
                    if (!b) {  /* an empty frame, which no interface takes */
                        p->length = p->cursor = p->truncate_to = 0;
                        p->truncates = 1;
                        continue;
                    }
                    b->users = 1;
                    p->owner = b;
                    p->data = b->bytes;
                }
        }
}

/* --- receiving */

/* The VLAN tag that the kernel took out of a frame goes back in; returns where it starts now. */
static u8 *frame_start(struct msghdr *m, u8 *frame, u32 *length) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
        struct tpacket_auxdata aux;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        if (!(aux.tp_status & TP_STATUS_VLAN_VALID) || *length < 12) continue;
        memmove(frame - VLAN_ROOM, frame, 12);
        frame -= VLAN_ROOM;
        *length += VLAN_ROOM;
        store_be16(frame + 12, aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid
                                                                         : 0x8100);
        store_be16(frame + 14, aux.tp_vlan_tci);
    }
    return frame;
}

/* One batch from a port; its frames are gone from `frames` when this returns. */
static void loop_receive(loop_thread *t, u32 port) {
    packet_loop *l = t->loop;
    p4_switch *sw = l->sw;
    loop_port *lp = &l->ports[port];
    lp->receiving = 1;
    switch_unlock(sw);
    int count = recvmmsg(lp->fd, t->receive, BATCH, MSG_DONTWAIT, NULL), failed = errno;
    loop_lock(l);
    lp->receiving = 0;
    if (!lp->open) return;
    if (count <= 0) {
        /* Nothing there, or a pending error of the socket (the interface went down), now read. */
        if (count < 0 && failed != EAGAIN && failed != EINTR) lp->counts.rx_errors++;
        mark_port(t->unread, port, failed != EAGAIN && failed != EBADF);
        return;
    }
    mark_port(t->unread, port, count == BATCH);
    if (atomic_load(&sw->interrupted)) return;
    look_at_interfaces(l);
    sw->now = loop_now(l);
    for (int i = 0; i < count; i++) {
        u32 length = t->receive[i].msg_len;
        struct msghdr *m = &t->receive[i].msg_hdr;
        u8 *frame = frame_start(m, t->receive_parts[i].iov_base, &length);
        m->msg_controllen = sizeof t->control[i];  /* as it was before recvmmsg */
        if (m->msg_flags & MSG_TRUNC) {
            lp->counts.rx_errors++;
            continue;
        }
        lp->counts.rx_packets++;
        lp->counts.rx_bytes += length;
        packet *p = packet_arrives(sw, port, NULL, frame, length);
        if (p) ingress_packet(sw, p);
    }
    loop_pump(t);
    loop_keep_queued(l);
}

/* A batch from each port that may have one. Others may take the lock between two ports. */
static void loop_receive_all(loop_thread *t) {
    packet_loop *l = t->loop;
    u64 unread[PORTS / 64];
    loop_lock(l);
    memcpy(unread, t->unread, sizeof unread);
    switch_unlock(l->sw);
    for (u32 word = 0; word < PORTS / 64; word++)
        for (u64 left = unread[word]; left; left &= left - 1) {
            u32 port = word * 64 + (u32)__builtin_ctzll(left);
            loop_lock(l);
            if (l->ports[port].open) loop_receive(t, port);
            switch_unlock(l->sw);
        }
}

static void loop_take_injected(loop_thread *t) {
    packet_loop *l = t->loop;
    packet *p = l->injected;
    l->injected = NULL;
    l->injected_last = &l->injected;
    if (p) l->sw->now = loop_now(l);
    while (p) {
        packet *next = p->next;
        ingress_packet(l->sw, p);
        p = next;
    }
    loop_pump(t);
    loop_keep_queued(l);
}

/* Packets may cost something again, unless the switch was interrupted for good. */
static void loop_allow(p4_switch *sw) {
    atomic_store(&sw->budget, sw->packet_budget);
    if (atomic_load(&sw->interrupted)) atomic_store(&sw->budget, 0);
}

/* Tries ports that no event will free. The lock is held. */
static void loop_retry_all(loop_thread *t) {
    packet_loop *l = t->loop;
    for (u32 word = 0; word < PORTS / 64; word++)
        for (u64 left = l->retrying[word]; left; left &= left - 1) {
            u32 port = word * 64 + (u32)__builtin_ctzll(left);
            if (!l->ports[port].blocked) continue;  /* another thread was first */
            l->ports[port].blocked = 0;
            mark_port(l->retrying, port, 0);
            stage_send(t, port);
        }
    l->sw->now = loop_now(l);
    loop_pump(t);
}

/* Packets in progress are dropped: a batch could take long. */
EXPORT void p4_loop_stop(packet_loop *l) {
    atomic_store(&l->sw->budget, 0);
    atomic_store(&l->stopping, 1);
    for (u32 i = 0; i < l->thread_count; i++) thread_wake(&l->threads[i]);
}

/* One packet thread, until p4_loop_stop. */
static void *thread_run(void *argument) {
    loop_thread *t = argument;
    packet_loop *l = t->loop;
    p4_switch *sw = l->sw;
    struct epoll_event events[BATCH];
    while (!atomic_load(&l->stopping)) {
        loop_lock(l);
        int unread = any_port(t->unread) || t->pumps, retries = any_port(l->retrying);
        switch_unlock(sw);
        int count = epoll_wait(t->epoll, events, BATCH, unread ? 0 : retries ? 1 : -1);
        if (count < 0) {
            if (errno == EINTR) continue;
            t->failed = errno;
            p4_loop_stop(l);
            break;
        }
        if (retries) {
            loop_lock(l);
            loop_retry_all(t);
            switch_unlock(sw);
        }
        for (int i = 0; i < count; i++) {
            u32 port = events[i].data.u32;
            loop_lock(l);
            if (port == WAKE_DATA) {
                u64 ignored;
                while (read(t->wake_event, &ignored, sizeof ignored) < 0 && errno == EINTR) {}
                loop_take_injected(t);
            } else if (l->ports[port].open) {
                if (events[i].events & EPOLLOUT && l->ports[port].blocked) {
                    l->ports[port].blocked = 0;
                    stage_send(t, port);
                    sw->now = loop_now(l);
                    loop_pump(t);
                }
                if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                    mark_port(t->unread, port, 1);
            }
            switch_unlock(sw);
        }
        loop_receive_all(t);
        if (t->pumps) {
            loop_lock(l);
            sw->now = loop_now(l);
            loop_pump(t);
            switch_unlock(sw);
        }
    }
    return NULL;
}

/* Runs all packet threads, the first of them in the caller's, until p4_loop_stop. 0, or the errno
   of what ended it. */
EXPORT int p4_loop_run(packet_loop *l) {
    u32 running = 1;
    int failed = 0;
    loop_allow(l->sw);
    while (!failed && running < l->thread_count) {
        loop_thread *t = &l->threads[running];
        failed = pthread_create(&t->id, NULL, thread_run, t);
        if (!failed) running++;
    }
    if (failed) p4_loop_stop(l);
    thread_run(&l->threads[0]);
    for (u32 i = 1; i < running; i++) pthread_join(l->threads[i].id, NULL);
    for (u32 i = 0; i < running && !failed; i++) failed = l->threads[i].failed;
    atomic_store(&l->stopping, 0);
    loop_allow(l->sw);
    return failed;
}

EXPORT int p4_loop_cpu_event(const packet_loop *l) { return l->cpu_event; }

EXPORT u64 p4_loop_clock(const packet_loop *l) { return loop_now(l); }

/* rx packets, rx bytes, tx packets, tx bytes, rx errors, tx errors. */
EXPORT void p4_loop_counts(packet_loop *l, u32 port, u64 *values) {
    switch_lock(l->sw);
    memcpy(values, port == l->cpu_port ? &l->cpu : &l->ports[port].counts, sizeof(port_counts));
    switch_unlock(l->sw);
}

/* Frames for ports without a socket, and frames for the CPU that found its ring full. */
EXPORT void p4_loop_lost(packet_loop *l, u64 *values) {
    switch_lock(l->sw);
    values[0] = l->unconnected;
    values[1] = l->cpu_lost;
    switch_unlock(l->sw);
}

#endif
