// SPDX-License-Identifier: Apache-2.0
#include "engine/base/hash.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static uint64_t process_key;
static pthread_once_t process_key_once = PTHREAD_ONCE_INIT;

static void draw_process_key(void)
{
    if (getrandom(&process_key, sizeof process_key, 0) != (ssize_t)sizeof process_key) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        process_key = hash_mix((uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 32);
    }
}

uint64_t hash_process_key(void)
{
    pthread_once(&process_key_once, draw_process_key);
    return process_key;
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    __uint128_t p = (__uint128_t)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t hash_bytes(const void *bytes, size_t n_bytes, uint64_t key)
{
    const unsigned char *p = bytes;
    uint64_t h = key ^ 0x9e3779b97f4a7c15ULL;
    size_t n = n_bytes;
    for (; n >= 16; n -= 16, p += 16) {
        uint64_t a, b;
        memcpy(&a, p, 8);
        memcpy(&b, p + 8, 8);
        h = fold(a ^ h, b ^ key ^ 0xe7037ed1a0b428dbULL);
    }
    uint64_t tail[2] = {0, 0};
    memcpy(tail, p, n);
    h = fold(tail[0] ^ h, tail[1] ^ key ^ 0x8ebc6af09c88c6e3ULL);
    return fold(h ^ n_bytes, key ^ 0x589965cc75374cc3ULL) ^ h;
}
