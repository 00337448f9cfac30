/* The protocol of a curve: from the data points of silos to the statistic that all share.
 *
 * A silo accumulates its data points in a batch. At a synchronisation its randomizer turns the
 * batch into a message (ff_protocol_report), the server combines the messages into the total
 * (ff_protocol_combine), and all silos go on with its ridge estimate (ff_protocol_refresh). */
#ifndef FF_PROTOCOL_H
#define FF_PROTOCOL_H

#include "ff_run.h"

/* Moves pending data points into the batch. */
void ff_protocol_flush(const ff_run *run, ff_curve *c, int64_t silo, ff_pending *pending);

/* Bits: adds the data point to every tree node that will hold it, rounded anew for each of them
 * (zhou-chowdhury-2024, Alg. 5 line 7). */
void ff_protocol_accumulate_bits(const ff_run *run, ff_curve *c, int64_t silo, int64_t round,
                                 double y, const ff_parts *p);

/* Adds the data point (p->feature, y) of a round to what the silo will send. Points of a batch
 * wait in `pending` until it is full. Inline, for the shortest rounds take 0.2 microseconds. */
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

/* Writes the message of a silo after its k-th batch into its row of messages. */
void ff_protocol_report(const ff_run *run, ff_curve *c, int64_t silo, int64_t k, double *scratch);

/* Adds a silo's message to the sum of those before it, in the first row of messages. Called of all
 * silos in their order. Where a shuffler gives another order, this does nothing. */
void ff_protocol_add(const ff_run *run, ff_curve *c, int64_t silo);

/* The server's part: updates the total from the sum of the k-th messages, which it adds up itself
 * where they come from a shuffler, in its order. */
void ff_protocol_combine(const ff_run *run, ff_curve *c, int64_t k, double *scratch);

/* Makes W and theta of all silos from the total, with the radius that holds from now on. */
int64_t ff_protocol_refresh(const ff_run *run, ff_curve *c, double *scratch);

#endif
