/* The packet loop: packet sockets in, the switch, packet sockets out, without Python.

   A packet thread sleeps in epoll, which tells of new frames only (EPOLLET), takes batches of up
   to 64 frames from a port, out of its ring or by recvmmsg, through ingress, and queues through
   egress into the port's stage, which sendmmsg empties. A port whose socket is full keeps its
   stage and its queues (tail drop beyond the queue depth) until EPOLLOUT, or for a millisecond if
   the kernel said ENOBUFS, which no event ends; other ports go on. Frames for the CPU port go into
   a ring that Python empties when the event descriptor `cpu_event` says so; frames from it come in
   by p4_loop_inject.

   With several packet threads, each receives from ports of its own. The program runs under the
   switch's lock, so its state is as exact as with one; system calls that receive and send run
   without it. One thread at a time runs egress for a port and sends its stage (`sending`), so that
   frames leave in the order of their queue. */
#ifndef P4_LOOP_H
#define P4_LOOP_H

#include "loop_state.h"

/* --- sending. The lock is held, but for the system call. */

/* Sends staged packets until all are sent or the socket is full. */
static void stage_send(loop_thread *t, u32 port) {
    packet_loop *l = t->loop;
    loop_port *lp = &l->ports[port];
    output *o = &lp->stage;
    lp->sending = 1;
    while (lp->sent < o->count) {
        u32 count = o->count - lp->sent < BATCH ? o->count - lp->sent : BATCH;
        for (u32 i = 0; i < count; i++) {
            u32 at = lp->sent + i;
            t->send_parts[i] = (struct iovec){o->bytes + o->offsets[at], o->lengths[at]};
            t->send[i].msg_hdr =
                (struct msghdr){.msg_iov = &t->send_parts[i], .msg_iovlen = 1};
        }
        loop_yield(l);
        int done = sendmmsg(lp->fd, t->send, count, MSG_DONTWAIT), failed = errno;
        loop_resume(l);
        lp->calls++;
        for (int i = 0; i < done; i++) {
            lp->counts.tx_packets++;
            lp->counts.tx_bytes += o->lengths[lp->sent++];
        }
        if (done > 0) continue;
        if (failed == EINTR) continue;
        if (failed == EAGAIN || failed == EWOULDBLOCK || failed == ENOBUFS) {
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
            if (ioctl(l->ports[port].fd, SIOCOUTQ, &bytes)) bytes = 0;
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
                for (;;) {
                    sw->paces = 1;
                    p = sw->out->count < BATCH ? dequeue(sw, port) : NULL;
                    sw->paces = 0;
                    if (!p) break;
                    if (sw->out == &lp->stage) sw->waiting[port][std_get_priority(p)]++;
                    egress_packet(sw, p, port);
                }
                int held = sw->held && sw->out->count < BATCH;
                if (sw->out == &lp->stage) {
                    mark_port(l->waiting, port, 1);
                    stage_send(t, port);
                } else {
                    if (to_cpu) cpu_take(l, &l->nowhere);
                    else l->unconnected += l->nowhere.count;
                    l->nowhere.used = l->nowhere.count = 0;
                }
                if (UNLIKELY(held) && !lp->blocked) {  /* Looked at again in a millisecond. */
                    lp->blocked = 1;
                    mark_port(l->retrying, port, 1);
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

/* Notes whether a frame's checksum is complete, and puts the VLAN tag that the kernel took out of
   it back in. `status` has TP_STATUS_... */
static void frame_status(received *r, u32 status, u16 tpid, u16 tci) {
    r->partial = (status & TP_STATUS_CSUMNOTREADY) != 0;
    if (!(status & TP_STATUS_VLAN_VALID) || r->length < 12) return;
    memmove(r->bytes - VLAN_ROOM, r->bytes, 12);
    r->bytes -= VLAN_ROOM;
    r->length += VLAN_ROOM;
    store_be16(r->bytes + 12, status & TP_STATUS_VLAN_TPID_VALID ? tpid : 0x8100);
    store_be16(r->bytes + 14, tci);
}

/* The frame in message `i`; 0 if the kernel cut it. */
static int message_frame(loop_thread *t, u32 i, u32 length, received *r) {
    struct msghdr *m = &t->receive[i].msg_hdr;
    *r = (received){t->receive_parts[i].iov_base, length, 0};
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
        struct tpacket_auxdata aux;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        frame_status(r, aux.tp_status, aux.tp_vlan_tpid, aux.tp_vlan_tci);
    }
    m->msg_controllen = sizeof t->control[i];  /* as it was before the system call */
    return !(m->msg_flags & MSG_TRUNC);
}

/* Frames of the port's socket, in t->batch. Returns how many the kernel gave, with those that it
   cut, or minus an errno. */
static int socket_receive(loop_thread *t, loop_port *lp, u32 *frames) {
    loop_yield(t->loop);
    int taken = recvmmsg(lp->fd, t->receive, BATCH, MSG_DONTWAIT, NULL), failed = errno;
    loop_resume(t->loop);
    for (int i = 0; i < taken; i++)
        if (message_frame(t, (u32)i, t->receive[i].msg_len, &t->batch[*frames])) ++*frames;
        else lp->counts.rx_errors++;
    return taken < 0 ? -failed : taken;
}

/* A frame longer than a slot, which waits in the socket; 0 if it is lost. */
static int long_frame(loop_thread *t, const loop_port *lp, u32 i, received *r) {
    ssize_t length = recvmsg(lp->fd, &t->receive[i].msg_hdr, MSG_DONTWAIT);
    if (length < 0 && errno != EAGAIN)  /* an error of the socket came first, and is read now */
        length = recvmsg(lp->fd, &t->receive[i].msg_hdr, MSG_DONTWAIT);
    return length >= 0 && message_frame(t, i, (u32)length, r);
}

/* As socket_receive, from the port's ring; the slots are this thread's until ring_release. */
static int ring_receive(loop_thread *t, loop_port *lp, u32 *frames) {
    u32 taken = 0;
    for (; taken < BATCH && taken < lp->ring->count; taken++) {
        struct tpacket2_hdr *slot = ring_slot(lp->ring, taken);
        u32 status = slot_status(slot);
        received *r = &t->batch[*frames];
        if (!status) break;
        if (status & TP_STATUS_COPY) {
            if (long_frame(t, lp, *frames, r)) ++*frames;
            else lp->counts.rx_errors++;
        } else if (slot->tp_snaplen < slot->tp_len) {
            lp->counts.rx_errors++;
        } else {
            *r = (received){(u8 *)slot + slot->tp_mac, slot->tp_snaplen, 0};
            frame_status(r, status, slot->tp_vlan_tpid, slot->tp_vlan_tci);
            ++*frames;
        }
    }
    return taken ? (int)taken : -EAGAIN;
}

/* Counts a pending error (the interface went down), which the next send would report otherwise. */
static void ring_error(loop_port *lp) {
    int failed = 0;
    socklen_t size = sizeof failed;
    if (!getsockopt(lp->fd, SOL_SOCKET, SO_ERROR, &failed, &size) && failed)
        lp->counts.rx_errors++;
}

/* Loads a frame into the caches, during other work: in a ring, another processor wrote it. */
static void prefetch_frame(const received *r) {
    u32 length = r->length < MOST_PREFETCHED ? r->length : MOST_PREFETCHED;
    for (u32 at = 0; at < length; at += CACHE_LINE) __builtin_prefetch(r->bytes + at);
}

/* The MTU of a port's interface. */
static u32 port_mtu(const loop_port *lp) {
    struct sockaddr_ll at = {0};
    socklen_t size = sizeof at;
    struct ifreq asked = {0};
    if (getsockname(lp->fd, (struct sockaddr *)&at, &size) || at.sll_family != AF_PACKET)
        return UINT32_MAX;
    asked.ifr_ifindex = at.sll_ifindex;
    if (ioctl(lp->fd, SIOCGIFNAME, &asked) || ioctl(lp->fd, SIOCGIFMTU, &asked)) return UINT32_MAX;
    return (u32)asked.ifr_mtu;
}

static void loop_ingress(packet_loop *l, u32 port, buffer *owner, const u8 *bytes, u32 length) {
    loop_port *lp = &l->ports[port];
    lp->counts.rx_packets++;
    lp->counts.rx_bytes += length;
    packet *p = packet_arrives(l->sw, port, owner, bytes, length);
    if (p) ingress_packet(l->sw, p);
    else free(owner);
}

/* A frame whose checksum, and perhaps its segments, were left to a network card. */
static void loop_ingress_partial(loop_thread *t, u32 port, const received *r, u32 mtu) {
    packet_loop *l = t->loop;
    transport_place whole;
    u32 room = segment_payload(r->bytes, r->length, mtu, &whole);
    if (!room) {
        complete_checksum(r->bytes, r->length);
        loop_ingress(l, port, NULL, r->bytes, r->length);
        return;
    }
    u32 payload = whole.end - whole.payload;
    for (u32 at = 0, number = 0; at < payload; at += room, number++) {
        u32 count = payload - at < room ? payload - at : room;
        buffer *b = malloc(sizeof *b + whole.payload + count);
        if (!b) {
            l->ports[port].counts.rx_errors++;
            return;
        }
        b->users = 0;
        b->size = make_segment(b->bytes, r->bytes, &whole, at, count, number);
        loop_ingress(l, port, b, b->bytes, b->size);
    }
    loop_pump(t);  /* The queues need not hold all segments of a batch. */
}

/* The frames of t->batch go through the switch; they are not used afterwards. */
static void loop_process(loop_thread *t, u32 port, u32 frames) {
    packet_loop *l = t->loop;
    p4_switch *sw = l->sw;
    loop_port *lp = &l->ports[port];
    u32 mtu = 0;
    if (atomic_load(&sw->interrupted)) return;
    look_at_interfaces(l);
    sw->now = loop_now(l);
    for (u32 i = 0; i < frames; i++) {
        const received *r = &t->batch[i];
        if (lp->ring && i + 1 < frames) prefetch_frame(r + 1);
        if (UNLIKELY(r->partial)) {
            if (!mtu) mtu = port_mtu(lp);
            loop_ingress_partial(t, port, r, mtu);
        } else {
            loop_ingress(l, port, NULL, r->bytes, r->length);
        }
    }
    loop_pump(t);
    loop_keep_queued(l);
}

/* One batch from a port. */
static void loop_receive(loop_thread *t, u32 port) {
    loop_port *lp = &t->loop->ports[port];
    u32 frames = 0;
    int taken = lp->ring ? ring_receive(t, lp, &frames) : socket_receive(t, lp, &frames);
    if (taken <= 0) {
        /* Nothing there, or a pending error of the socket (the interface went down), now read. */
        if (taken < 0 && taken != -EAGAIN && taken != -EINTR) lp->counts.rx_errors++;
        mark_port(t->unread, port, taken != -EAGAIN && taken != -EBADF);
    } else {
        mark_port(t->unread, port, taken == BATCH);
        loop_process(t, port, frames);
        if (lp->ring) ring_release(lp->ring, (u32)taken);
    }
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
            loop_receive(t, port);
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

/* Packets in progress are dropped, as a batch could take long, unless they are to be finished. */
EXPORT void p4_loop_stop(packet_loop *l, u32 finish) {
    if (!finish) atomic_store(&l->sw->budget, 0);
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
            p4_loop_stop(l, 0);
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
            } else {
                if (events[i].events & EPOLLERR && l->ports[port].ring)
                    ring_error(&l->ports[port]);
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
    if (failed) p4_loop_stop(l, 0);
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
    const loop_port *lp = &l->ports[port];
    for (u32 calls = lp->calls; lp->sending && lp->calls == calls;) {  /* its frames are counted */
        switch_unlock(l->sw);
        sched_yield();
        switch_lock(l->sw);
    }
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
