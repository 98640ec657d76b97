// A relay of TCP connections that reads no HTTP: the floor of what a proxy's hop costs. `proxies.py` compiles and measures it.
//
//   relay PORT UPSTREAM_PORT
//
// One thread, one epoll, one connection to the upstream per client, and no timeouts, for connections on 127.0.0.1. A peer that
// does not read what is relayed to it ends its connection: a benchmark's peers read.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_FILES = 16384, MOST_EVENTS = 256 };

static int peer_of[MOST_FILES];
static char bytes[65536];

static void require(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static struct sockaddr_in loopback(const char *port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void watch(int epoll, int file) {
    int yes = 1;
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = file};
    require(epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event) == 0, "epoll_ctl");
}

// The peer's number stays taken until its own event, so that no later connection of the same batch of events has it.
static void end(int file) {
    int peer = peer_of[file];
    close(file);
    if (peer >= 0) {
        peer_of[peer] = -1;
        shutdown(peer, SHUT_RDWR);
    }
}

static void accept_clients(int epoll, int listener, const struct sockaddr_in *upstream) {
    int client;
    while ((client = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        int server = socket(AF_INET, SOCK_STREAM, 0);
        require(server >= 0 && server < MOST_FILES && client < MOST_FILES, "socket");
        require(connect(server, (const struct sockaddr *)upstream, sizeof *upstream) == 0, "connect");
        peer_of[client] = server;
        peer_of[server] = client;
        watch(epoll, client);
        watch(epoll, server);
    }
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: relay PORT UPSTREAM_PORT\n");
        return 2;
    }
    struct sockaddr_in own = loopback(arguments[1]), upstream = loopback(arguments[2]);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    require(bind(listener, (struct sockaddr *)&own, sizeof own) == 0 && listen(listener, 1024) == 0, "listen");
    watch(epoll, listener);
    struct epoll_event events[MOST_EVENTS];
    for (;;) {
        int ready = epoll_wait(epoll, events, MOST_EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int file = events[i].data.fd;
            if (file == listener) {
                accept_clients(epoll, listener, &upstream);
                continue;
            }
            ssize_t got = recv(file, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got <= 0 || send(peer_of[file], bytes, got, MSG_NOSIGNAL) != got) {
                end(file);
            }
        }
    }
}
