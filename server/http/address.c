// SPDX-License-Identifier: Apache-2.0
/* How many connections each client address has. An IPv6 host can use any address of its network, so
 * the first 64 bits count. */
#include "server/http/private.h"

#include <stdlib.h>
#include <string.h>

struct http_address {
    struct http_address *next; // in its slot of the table
    unsigned n_connections;
    unsigned char bytes[ADDRESS_BYTES];
};

/* The bytes that name the client; false: it has no address (a Unix socket). */
static bool bytes_of(const struct sockaddr *sa, unsigned char bytes[ADDRESS_BYTES])
{
    memset(bytes, 0, ADDRESS_BYTES);
    if (sa->sa_family == AF_INET) {
        memcpy(bytes, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
        return true;
    }
    if (sa->sa_family != AF_INET6) {
        return false;
    }
    const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(a)) {
        memcpy(bytes, a->s6_addr + 12, 4);
    } else {
        memcpy(bytes, a->s6_addr, ADDRESS_BYTES);
    }
    return true;
}

static struct http_address **slot_of(struct http_server *s, const unsigned char *bytes)
{
    uint64_t h = 0;
    memcpy(&h, bytes, ADDRESS_BYTES);
    h = (h ^ s->id_seed) * 0x9e3779b97f4a7c15u; // the seed is random, so nobody can choose a slot
    struct http_address **p = &s->addresses[(h >> 32) % N_ADDRESS_SLOTS];
    while (*p && memcmp((*p)->bytes, bytes, ADDRESS_BYTES) != 0) {
        p = &(*p)->next;
    }
    return p;
}

bool http_address_enter(struct http_server *s, const struct sockaddr *sa, struct http_address **out)
{
    unsigned char bytes[ADDRESS_BYTES];
    *out = NULL;
    if (s->options.max_per_address == 0 || !bytes_of(sa, bytes)) {
        return true;
    }
    struct http_address **p = slot_of(s, bytes);
    if (!*p) {
        *p = xcalloc(1, sizeof **p);
        memcpy((*p)->bytes, bytes, sizeof bytes);
    }
    if ((*p)->n_connections >= s->options.max_per_address) {
        return false;
    }
    (*p)->n_connections++;
    *out = *p;
    return true;
}

void http_address_leave(struct http_server *s, struct http_address *a)
{
    if (a && --a->n_connections == 0) {
        *slot_of(s, a->bytes) = a->next;
        free(a);
    }
}
