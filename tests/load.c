/* Load a silo's socket: each client makes a decision, sends its reward, and goes on.
 *
 *     load SOCKET CLIENTS SECONDS BODIES
 *
 * BODIES is a file with one request body (JSON) in each line. Printed are the seconds of each decision
 * and of its reward, one pair in each line. One thread serves all clients, so that it takes little of
 * the processor that the silo needs. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 256, ROOM = 1 << 16 };
typedef struct {
    char data[ROOM], id[32];
    size_t length, next;
    double since, decided;
    int rewards;
} client;

static client clients[MOST];
static char *bodies[4096];
static size_t count;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static void post(int socket, client *c, const char *path, const char *body)
{
    static char request[ROOM];
    const int n = snprintf(request, sizeof request,
                           "POST %s HTTP/1.1\r\nhost: silo\r\ncontent-length: %zu\r\n\r\n%s", path,
                           strlen(body), body);
    if (n >= (int)sizeof request || write(socket, request, (size_t)n) != n)
        fail("a request could not be written");
    c->length = 0;
    c->since = now();
}

static void begin(int socket, client *c)
{
    c->rewards = 0;
    post(socket, c, "/decide", bodies[c->next++ % count]);
}

/* Return whether the answer is complete; it must have status 200. */
static int complete(client *c)
{
    c->data[c->length] = 0;
    const char *end = strstr(c->data, "\r\n\r\n"), *size = strcasestr(c->data, "content-length:");
    if (!end || !size)
        return 0;
    if (strncmp(c->data, "HTTP/1.1 200", 12) != 0)
        fail(c->data);
    return c->length >= (size_t)(end + 4 - c->data) + (size_t)atol(size + 15);
}

int main(int arguments, char **argument)
{
    if (arguments != 5)
        fail("give SOCKET CLIENTS SECONDS BODIES");
    const int n = atoi(argument[2]);
    FILE *file = fopen(argument[4], "r");
    static char line[ROOM];
    while (file && count < 4096 && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        bodies[count++] = strdup(line);
    }
    if (!count || n < 1 || n > MOST)
        fail("no bodies, or a wrong number of clients");
    struct pollfd sockets[MOST];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argument[1], sizeof address.sun_path - 1);
    for (int i = 0; i < n; i++) {
        sockets[i] = (struct pollfd){.fd = socket(AF_UNIX, SOCK_STREAM, 0), .events = POLLIN};
        if (connect(sockets[i].fd, (struct sockaddr *)&address, sizeof address) != 0)
            fail("no silo answers at the socket");
        begin(sockets[i].fd, &clients[i]);
    }
    const double end = now() + atof(argument[3]);
    for (int open = n; open && poll(sockets, (nfds_t)n, 30000) > 0;)
        for (int i = 0; i < n; i++) {
            client *c = &clients[i];
            if (!sockets[i].revents)
                continue;
            const ssize_t got = read(sockets[i].fd, c->data + c->length, ROOM - 1 - c->length);
            if (got <= 0)
                fail("the silo closed a connection");
            c->length += (size_t)got;
            if (!complete(c))
                continue;
            const double took = now() - c->since;
            if (!c->rewards) {
                const char *id = strstr(c->data, "\"id\":");
                if (!id || sscanf(id + 5, " \"%31[0-9a-f]\"", c->id) != 1)
                    fail("an answer has no id");
                c->decided = took;
                c->rewards = 1;
                char body[96];
                snprintf(body, sizeof body, "{\"id\": \"%s\", \"reward\": 0.5}", c->id);
                post(sockets[i].fd, c, "/reward", body);
                continue;
            }
            printf("%.9f %.9f\n", c->decided, took);
            if (now() < end)
                begin(sockets[i].fd, c);
            else {
                close(sockets[i].fd);
                sockets[i].fd = -1;
                open--;
            }
        }
    return 0;
}
