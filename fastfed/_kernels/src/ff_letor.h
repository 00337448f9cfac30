/* Learning-to-rank text, `relevance qid:N index:value ... [# comment]`, one row a line. */
#ifndef FF_LETOR_H
#define FF_LETOR_H

#include "ff_base.h"

enum {
    FF_LETOR_READ,
    FF_LETOR_WIDER,   /* an index is larger than the table is wide */
    FF_LETOR_UNUSUAL, /* something that only the exact parser reads, or refuses in words */
};

/* Where rows go. `values` holds zeros, as many rows as the text has lines, `width` to a row. */
typedef struct {
    int64_t width;
    float *values;
    int32_t *relevance;
    int64_t *qid;
    int64_t *hard; /* begin, end and cell of values for the exact parser: size / 6 + 1 triples */
    int64_t rows, largest, hards; /* found: rows, the largest index, hard values */
} ff_letor_table;

/* Read whole lines; the last byte must be a line end. Indices of a line must grow, up to `limit`.
 *
 * A value of at most 19 digits, below 2^53 without its point, times a power of ten up to 10^22
 * either way is one exact number multiplied with or divided by another, so it is correctly rounded
 * (Clinger 1990); all other values are hard. */
int ff_letor_parse(const char *text, int64_t size, int64_t limit, ff_letor_table *table);

#endif
