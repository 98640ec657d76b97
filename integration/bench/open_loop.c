// An open-loop client of HTTP/1.1 on 127.0.0.1: it sends by a schedule, whatever the answers do. `open_loop.py` compiles it.
//
//   open_loop PORT RATE SECONDS CONNECTIONS IDS [UPSTREAM_PORT]
//
// With UPSTREAM_PORT it is also the upstream there, in the same loop, so that the two never wait for each other's core.
//
// Request n is intended at n / RATE seconds after the start, on connection n modulo CONNECTIONS. Its latency counts from that time,
// so a request that waits for the answer before it on its connection counts the wait: what a stall does to those who come meanwhile is
// not left out. With IDS above 0, `X-Id` has that many values in turn. The first half second is not counted. With a RATE of 0 each
// connection asks again when its answer has come, for SECONDS: a closed loop, which finds how many requests per second there can be.
//
// Prints one line of JSON, times in microseconds: how long it took, the latencies' percentiles, `late_p99` and `late_max`, by how much the client itself
// missed the schedule on idle connections, and `reopened`, how often a connection was closed and its request, if it had one without any
// answer yet, was sent again on a new one.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 4096, MOST_EVENTS = 256, HEAD = 8192, MOST_REOPENED_IN_A_ROW = 100 };

static const int64_t SECOND = 1000000000, WARM_UP = SECOND / 2, GRACE = 5 * SECOND;

static const char ANSWER[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 64\r\n\r\n"
                             "hello from the upstream: 64 bytes of body, as a small JSON reply";

enum kind { CLIENT, LISTENER, UPSTREAM };

// What an event of epoll points to.
struct end {
    enum kind kind;
    int file;
};

struct connection {
    struct end end;
    int busy;            // a request is under way
    int reopened;        // in a row, without an answer
    uint64_t next;       // the request that is under way, or the next one
    uint64_t due;        // how many requests of the schedule are due and not answered
    size_t got;          // bytes of the head
    long body;           // bytes of the body that are missing; -1: the head is not complete
    int closing;         // the answer says that it is the last one
    char head[HEAD + 1];
};

static struct connection connections[MOST_CONNECTIONS];
static struct sockaddr_in server;
static int epoll, closed;
static uint64_t rate, count, ids, planned, requests, denied, reopened, unanswered;
static int64_t begin;
static uint32_t *latencies, *lateness;
static uint64_t measured, sent_when_idle;
static char scratch[65536];

static void require(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static int64_t intended(uint64_t number) { return begin + (int64_t)(number * (double)SECOND / rate); }

static int counts(uint64_t number) { return !closed && intended(number) - begin >= WARM_UP; }

static uint32_t micros(int64_t nanos) { return nanos < 0 ? 0 : nanos / 1000 > UINT32_MAX ? UINT32_MAX : nanos / 1000; }

static struct sockaddr_in loopback(const char *port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void watch(struct end *end, enum kind kind, int file) {
    int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    *end = (struct end){kind, file};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = end};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event) == 0, "epoll_ctl");
}

static void listen_at(struct end *listener, const char *port) {
    struct sockaddr_in own = loopback(port);
    int yes = 1, file = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    require(bind(file, (struct sockaddr *)&own, sizeof own) == 0 && listen(file, 1024) == 0, "listen");
    watch(listener, LISTENER, file);
}

static void accept_all(const struct end *listener) {
    int file;
    while ((file = accept4(listener->file, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        struct end *end = malloc(sizeof *end);
        require(end != NULL, "malloc");
        watch(end, UPSTREAM, file);
    }
}

// A proxy has one request under way on a connection, and writes its head at once.
static void answer(struct end *end) {
    ssize_t got = recv(end->file, scratch, sizeof scratch, 0);
    if (got <= 0) {
        close(end->file);
        free(end);
        return;
    }
    errno = EPROTO;
    require(got > 4 && !memcmp(scratch + got - 4, "\r\n\r\n", 4), "a request without a body");
    send(end->file, ANSWER, sizeof ANSWER - 1, MSG_NOSIGNAL);
}

static void open_connection(struct connection *connection) {
    int file = socket(AF_INET, SOCK_STREAM, 0);
    require(file >= 0, "socket");
    require(connect(file, (struct sockaddr *)&server, sizeof server) == 0, "connect");
    watch(&connection->end, CLIENT, file);
    connection->closing = 0;
}

static void send_request(struct connection *connection) {
    char text[256];
    int size = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    if (ids) {
        // Neighbors in the order of time are no neighbors in the order of numbers.
        size += snprintf(text + size, sizeof text - size, "X-Id: %llu\r\n",
                         (unsigned long long)(connection->next % ids * 7919 % ids));
    }
    size += snprintf(text + size, sizeof text - size, "\r\n");
    connection->busy = 1;
    connection->got = 0;
    connection->body = -1;
    // A connection that the server has just closed is noticed when it is read.
    send(connection->end.file, text, size, MSG_NOSIGNAL);
}

static void reopen(struct connection *connection) {
    require(++connection->reopened < MOST_REOPENED_IN_A_ROW, "the server closes every connection");
    reopened++;
    close(connection->end.file);
    open_connection(connection);
    if (connection->busy) {
        send_request(connection);
    }
}

static void answered(struct connection *connection) {
    int64_t at = now();
    requests++;
    if (counts(connection->next)) {
        latencies[measured++] = micros(at - intended(connection->next));
    }
    connection->busy = connection->reopened = 0;
    connection->next += count;
    connection->due -= !closed;
    if (connection->closing) {
        reopen(connection);
    }
    if (connection->due) {
        send_request(connection);
    }
}

// Reads the status and the length of a complete head.
static void read_head(struct connection *connection, char *end) {
    *end = 0;
    int status = 0;
    long length = -1;
    require(sscanf(connection->head, "HTTP/1.1 %d", &status) == 1, "a status line");
    for (char *line = strstr(connection->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (!strncasecmp(line + 2, "content-length:", 15)) {
            length = atol(line + 17);
        } else if (!strncasecmp(line + 2, "connection: close", 17)) {
            connection->closing = 1;
        }
    }
    errno = EPROTO;
    require(length >= 0, "an answer without Content-Length");
    denied += status > 399;
    connection->body = length - (long)(connection->head + connection->got - (end + 4));
    require(connection->body >= 0, "an answer longer than its Content-Length");
}

static void readable(struct connection *connection) {
    int in_head = connection->body < 0;
    char *into = in_head ? connection->head + connection->got : scratch;
    ssize_t got = recv(connection->end.file, into, in_head ? HEAD - connection->got : sizeof scratch, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) {
        return;
    }
    if (got <= 0) {
        require(!connection->busy || (in_head && !connection->got), "an answer that ends before its time");
        reopen(connection);
        return;
    }
    require(connection->busy, "an answer that nobody asked for");
    if (in_head) {
        connection->got += got;
        connection->head[connection->got] = 0;
        char *end = strstr(connection->head, "\r\n\r\n");
        errno = EMSGSIZE;
        require(end || connection->got < HEAD, "a long head");
        if (!end) {
            return;
        }
        read_head(connection, end);
    } else {
        connection->body -= got;
    }
    if (connection->body == 0) {
        answered(connection);
    }
}

// Sends what is due, or leaves it to the connection whose answer is missing. Returns how long the next one can wait.
static int64_t keep_schedule(uint64_t total) {
    while (!closed) {
        int64_t wait = intended(planned) - now();
        if (planned == total || wait > 0) {
            return planned == total ? SECOND / 100 : wait;
        }
        struct connection *connection = &connections[planned % count];
        connection->due++;
        if (!connection->busy) {
            if (counts(planned)) {
                lateness[sent_when_idle++] = micros(-wait);
            }
            send_request(connection);
        }
        planned++;
    }
    return SECOND / 100;
}

// Everybody asks at once.
static void close_loop(void) {
    for (uint64_t i = 0; i < count; i++) {
        connections[i].due = 1;
        send_request(&connections[i]);
    }
}

static int ascending(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static uint32_t at(const uint32_t *sorted, uint64_t length, double share) {
    return length ? sorted[(uint64_t)((length - 1) * share)] : 0;
}

int main(int argument_count, char **arguments) {
    if (argument_count < 6) {
        fprintf(stderr, "usage: open_loop PORT RATE SECONDS CONNECTIONS IDS [UPSTREAM_PORT]\n");
        return 2;
    }
    server = loopback(arguments[1]);
    rate = strtoull(arguments[2], NULL, 10);
    closed = rate == 0;
    count = strtoull(arguments[4], NULL, 10);
    ids = strtoull(arguments[5], NULL, 10);
    errno = EINVAL;
    require(count > 0 && count <= MOST_CONNECTIONS, "CONNECTIONS");
    double seconds = strtod(arguments[3], NULL);
    uint64_t total = rate * seconds;
    latencies = calloc(total + 1, sizeof *latencies);
    lateness = calloc(total + 1, sizeof *lateness);
    epoll = epoll_create1(0);
    // Without this the kernel may wake it 50 us late.
    prctl(PR_SET_TIMERSLACK, 1);
    struct end listener;
    if (argument_count > 6) {
        listen_at(&listener, arguments[6]);
    }
    for (uint64_t i = 0; i < count; i++) {
        connections[i].next = i;
        open_connection(&connections[i]);
    }
    begin = now();
    struct epoll_event events[MOST_EVENTS];
    if (closed) {
        close_loop();
    }
    int64_t end = begin + (int64_t)(seconds * SECOND) + (closed ? 0 : GRACE);
    while ((closed || requests < total) && now() < end) {
        int64_t wait = keep_schedule(total);
        struct timespec timeout = {.tv_sec = wait / SECOND, .tv_nsec = wait % SECOND};
        int ready = epoll_pwait2(epoll, events, MOST_EVENTS, &timeout, NULL);
        for (int i = 0; i < ready; i++) {
            struct end *end = events[i].data.ptr;
            if (end->kind == LISTENER) {
                accept_all(end);
            } else if (end->kind == UPSTREAM) {
                answer(end);
            } else {
                readable(events[i].data.ptr);
            }
        }
    }
    int64_t took = now() - begin;
    // Those that never came waited until the end, and so count as at least that long.
    for (uint64_t i = 0; !closed && i < count; i++) {
        for (struct connection *c = &connections[i]; c->due; c->due--, c->next += count, unanswered++) {
            if (counts(c->next)) {
                latencies[measured++] = micros(now() - intended(c->next));
            }
        }
    }
    qsort(latencies, measured, sizeof *latencies, ascending);
    qsort(lateness, sent_when_idle, sizeof *lateness, ascending);
    printf("{\"requests\": %llu, \"micros\": %lld, \"denied\": %llu, \"reopened\": %llu, \"unanswered\": %llu, ",
           (unsigned long long)requests, (long long)took / 1000, (unsigned long long)denied, (unsigned long long)reopened,
           (unsigned long long)unanswered);
    printf("\"p50\": %u, \"p95\": %u, \"p99\": %u, \"p999\": %u, \"max\": %u, \"late_p99\": %u, \"late_max\": %u}\n",
           at(latencies, measured, 0.5), at(latencies, measured, 0.95), at(latencies, measured, 0.99), at(latencies, measured, 0.999),
           at(latencies, measured, 1), at(lateness, sent_when_idle, 0.99), at(lateness, sent_when_idle, 1));
}
