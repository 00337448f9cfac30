/* Parser of learning-to-rank ("LETOR") text: `relevance qid:N index:value ... [# comment]`,
 * one row in each line. qid: the number of the query. */
#ifndef FF_LETOR_H
#define FF_LETOR_H

#include "ff_base.h"

/* What ff_letor_parse returns. */
enum {
    FF_LETOR_READ,
    FF_LETOR_WIDER,   /* an index is larger than the width of the table */
    FF_LETOR_UNUSUAL, /* something that only the exact parser in Python reads, or refuses with a
                       * message */
};

/* The table that rows are written to. `values` holds zeros; it has as many rows as the text has
 * lines, of `width` entries each. */
typedef struct {
    int64_t width;                /* entries of a row of values */
    float *values;                /* (rows, width) */
    int32_t *relevance;           /* (rows) */
    int64_t *qid;                 /* (rows): numbers of queries */
    int64_t *hard;                /* triples (begin, end, cell of values) of numbers for the
                                   * exact parser; room for size / 6 + 1 */
    int64_t rows, largest, hards; /* results: rows, largest index, number of triples */
} ff_letor_table;

/* Read whole lines; the last byte must be the end of a line. The indices of a line must increase,
 * up to `limit`. Returns one of the values above.
 *
 * A value with at most 19 digits, below 2^53 without its decimal point, times a power of ten
 * between 10^-22 and 10^22, is one exact number multiplied or divided by another. So it is
 * correctly rounded (Clinger 1990). All other values are left to the exact parser. */
int ff_letor_parse(const char *text, int64_t size, int64_t limit, ff_letor_table *table);

#endif
