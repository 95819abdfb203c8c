/* The packet loop's state: its threads and ports, and the lock that threads share. */
#ifndef P4_LOOP_STATE_H
#define P4_LOOP_STATE_H

#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "offloads.h"
#include "rings.h"

#define BATCH 64
#define FRAME_ROOM 65536
/* Between the frames of a batch: rooms a power of two apart would share their sets of the caches. */
#define FRAME_STRIDE (FRAME_ROOM + 1600)
#define VLAN_ROOM 4
#define CACHE_LINE 64
#define MOST_PREFETCHED 2048
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
    u8 sending;                /* a thread uses the descriptor without the lock */
    u32 sent;                  /* frames of the stage that are gone */
    u32 calls;                 /* of sendmmsg that ended */
    receive_ring *ring;        /* NULL: frames are received by recvmmsg */
    output stage;
    port_counts counts;
} loop_port;

typedef struct {
    u8 *bytes;
    u32 length;
    u8 partial;                /* its checksum is not complete (offloads.h) */
} received;

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
    received batch[BATCH];     /* frames from one port, in `frames` or in its ring */
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

EXPORT packet_loop *p4_loop_create(p4_switch *sw, u32 threads) {
    packet_loop *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->sw = sw;
    l->cpu_port = sw->cpu_port;
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
   held; waiting for output anew also reports room that there was since the socket was full. */
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
    loop_watch_output(l, port, 0);
}

/* 0, or an errno. The descriptor and the ring, which may be NULL, stay the caller's. */
EXPORT int p4_loop_add_port(packet_loop *l, u32 port, int fd, receive_ring *ring) {
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
        lp->ring = ring;
        lp->open = 1;
        lp->blocked = lp->watches_output = 0;
    }
    switch_unlock(l->sw);
    return failed;
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

/* The lock is free for other packet threads during a system call. */
static void loop_yield(packet_loop *l) {
    if (l->thread_count > 1) switch_unlock(l->sw);
}
static void loop_resume(packet_loop *l) {
    if (l->thread_count > 1) loop_lock(l);
}

#endif
