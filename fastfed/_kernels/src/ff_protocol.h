/* The protocol of a curve: from the data points of silos to the statistic that all silos share.
 *
 * A silo adds its data points to the statistic of its batch. At a synchronisation the silo's
 * randomizer turns the batch into a message (ff_protocol_report), the server combines the messages
 * into the total (ff_protocol_combine), and all silos adopt the ridge estimate of that total
 * (ff_protocol_refresh). */
#ifndef FF_PROTOCOL_H
#define FF_PROTOCOL_H

#include "ff_run.h"

/* Add the buffered data points to the silo's batch, and empty the buffer. */
void ff_protocol_flush(const ff_run *run, ff_curve *c, int64_t silo, ff_pending *pending);

/* Bits: add the data point to every tree node that will contain it, with fresh rounding for each
 * node (zhou-chowdhury-2024, Alg. 5 line 7). */
void ff_protocol_accumulate_bits(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                 double y, const ff_parts *p);

/* Add the data point (p->feature, y) of a round to the statistic that the silo will send. Points
 * are buffered in `pending` until it is full. Inline, because the shortest rounds take 0.2
 * microseconds. */
FF_INLINE void ff_protocol_accumulate(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                      double y, const ff_parts *p, ff_pending *pending)
{
    const int64_t d = run->dimension;
    if (c->randomizer == FF_SEND_BITS) {
        ff_protocol_accumulate_bits(run, c, silo, round, y, p);
        return;
    }
    double *point = pending->points + pending->count++ * (d + 1);
    memcpy(point, p->feature, (size_t)d * sizeof(double));
    point[d] = y;
    if (pending->count == PENDING)
        ff_protocol_flush(run, c, silo, pending);
}

/* Compute the silo's message after its k-th batch, into its row of c->messages. */
void ff_protocol_report(const ff_run *run, ff_curve *c, int64_t silo, int64_t k, double *scratch);

/* Add a silo's message to the sum of the messages of earlier silos, which is in the first row of
 * c->messages. Called for all silos in order. Does nothing if a shuffler gives the order, or if
 * silos have their own clocks. */
void ff_protocol_add(const ff_run *run, ff_curve *c, int64_t silo);

/* Update c->total from the sum of the k-th messages (the server's part). If a shuffler gives the
 * order, add up the messages here in that order. */
void ff_protocol_combine(const ff_run *run, ff_curve *c, int64_t k, double *scratch);

/* Compute W, theta and the radius of all silos from c->total. They hold until the next
 * synchronisation. Returns a status. */
int64_t ff_protocol_refresh(const ff_run *run, ff_curve *c, double *scratch);

#endif
