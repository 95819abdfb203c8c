/* Frames in batches over a packet socket: one system call for many frames. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { BATCH = 64 };

/* Send n frames of `length` bytes that lie `stride` bytes apart. Returns how many the kernel
 * took; fewer than n when the socket's buffer or the queue is full; -errno on another error
 * before the first. Never blocks. */
int packet_send(int fd, const uint8_t *frames, uint32_t n, uint32_t length, uint32_t stride)
{
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH];
    uint32_t sent = 0;
    while (sent < n) {
        uint32_t batch = n - sent < BATCH ? n - sent : BATCH;
        memset(messages, 0, sizeof messages[0] * batch);
        for (uint32_t i = 0; i < batch; i++) {
            parts[i].iov_base = (void *)(frames + (size_t)(sent + i) * stride);
            parts[i].iov_len = length;
            messages[i].msg_hdr.msg_iov = &parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        int done = sendmmsg(fd, messages, batch, MSG_DONTWAIT);
        if (done < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)
                return (int)sent;
            return sent ? (int)sent : -errno;
        }
        sent += (uint32_t)done;
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
