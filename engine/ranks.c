#include "engine/ranks.h"

#include "engine/base/assert.h"


static void *worker(void *p)
{
    struct rank *r = p;
    // The struct holds its ranks by value, so the way back to it is arithmetic.
    struct ranks *rs =
        (struct ranks *)(void *)((char *)(r - r->index) - offsetof(struct ranks, rank));
    uint64_t seen = 0;
    pthread_mutex_lock(&rs->lock);
    for (;;) {
        while (rs->round == seen && !rs->stopping) {
            pthread_cond_wait(&rs->changed, &rs->lock);
        }
        if (rs->round == seen) {
            break;
        }
        seen = rs->round;
        enum status (*work)(struct rank *r, void *arg) = rs->work;
        void *arg = rs->arg;
        pthread_mutex_unlock(&rs->lock);
        r->st = work(r, arg);
        pthread_mutex_lock(&rs->lock);
        rs->n_done++;
        pthread_cond_broadcast(&rs->changed);
    }
    pthread_mutex_unlock(&rs->lock);
    return NULL;
}

enum status ranks_start(struct ranks *rs, int32_t n, struct err *err)
{
    ASSERT(n >= 1 && n <= MAX_RANKS);
    *rs = (struct ranks){.n = n};
    pthread_mutex_init(&rs->lock, NULL);
    pthread_cond_init(&rs->changed, NULL);
    for (int32_t i = 0; i < n; i++) {
        rs->rank[i].index = i;
    }
    for (int32_t i = 1; i < n; i++) {
        if (pthread_create(&rs->threads[i], NULL, worker, &rs->rank[i]) != 0) {
            ranks_stop(rs);
            return err_set(err, ERR_NOMEM, "no thread for rank %d", i);
        }
        rs->n_threads++;
    }
    return OK;
}

enum status ranks_run(struct ranks *rs, enum status (*work)(struct rank *r, void *arg), void *arg)
{
    if (rs->n > 1) {
        pthread_mutex_lock(&rs->lock);
        rs->work = work;
        rs->arg = arg;
        rs->n_done = 0;
        rs->round++;
        pthread_cond_broadcast(&rs->changed);
        pthread_mutex_unlock(&rs->lock);
    }
    rs->rank[0].st = work(&rs->rank[0], arg);
    if (rs->n > 1) {
        pthread_mutex_lock(&rs->lock);
        while (rs->n_done < rs->n - 1) {
            pthread_cond_wait(&rs->changed, &rs->lock);
        }
        pthread_mutex_unlock(&rs->lock);
    }
    for (int32_t i = 0; i < rs->n; i++) {
        TRY(rs->rank[i].st);
    }
    return OK;
}

void ranks_stop(struct ranks *rs)
{
    if (rs->n == 0) {
        return;
    }
    pthread_mutex_lock(&rs->lock);
    rs->stopping = true;
    pthread_cond_broadcast(&rs->changed);
    pthread_mutex_unlock(&rs->lock);
    for (int32_t i = 1; i <= rs->n_threads; i++) {
        pthread_join(rs->threads[i], NULL);
    }
    pthread_cond_destroy(&rs->changed);
    pthread_mutex_destroy(&rs->lock);
    *rs = (struct ranks){0};
}
