#include "ff_letor.h"

/* The powers of ten that are exact in float64. */
static const double POWERS[23] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

/* Return 1 if c is a decimal digit. */
FF_INLINE int is_digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

/* Return 1 if c is blank space within a line. */
FF_INLINE int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Return 1 if c cannot belong to a number. */
FF_INLINE int ends_token(char c)
{
    return is_blank(c) || c == '\n' || c == '#';
}

/* Parse at least one and at most digits_max digits into *value. Returns the address after them, or
 * NULL if there are none or more. */
FF_INLINE const char *parse_integer(const char *cursor, int64_t digits_max, int64_t *value)
{
    const char *first = cursor;
    int64_t number = 0;
    for (; is_digit(*cursor) && cursor - first < digits_max; cursor++)
        number = 10 * number + (*cursor - '0');
    *value = number;
    return cursor == first || is_digit(*cursor) ? NULL : cursor;
}

/* Parse a decimal number into *value. Returns the address after it, or NULL if there is none. *hard
 * receives 1 if only the exact parser rounds the number correctly; *value is then not written. */
FF_INLINE const char *parse_decimal(const char *cursor, double *value, int *hard)
{
    const int negative = *cursor == '-';
    cursor += negative || *cursor == '+';
    uint64_t number = 0; /* wraps beyond 19 digits, which are left to the exact parser */
    const char *first = cursor;
    for (; is_digit(*cursor); cursor++)
        number = 10 * number + (uint64_t)(*cursor - '0');
    int64_t digits = cursor - first, power = 0;
    if (*cursor == '.') {
        first = ++cursor;
        for (; is_digit(*cursor); cursor++)
            number = 10 * number + (uint64_t)(*cursor - '0');
        power = first - cursor;
        digits -= power;
    }
    if (!digits)
        return NULL;
    if (*cursor == 'e' || *cursor == 'E') {
        const int exponent_negative = *++cursor == '-';
        cursor += exponent_negative || *cursor == '+';
        int64_t exponent;
        const char *digits_end = parse_integer(cursor, 9, &exponent);
        if (!digits_end)
            return NULL;
        cursor = digits_end;
        power += exponent_negative ? -exponent : exponent;
    }
    *hard = digits > 19 || number > (uint64_t)1 << 53 || power < -22 || power > 22;
    if (!*hard) {
        const double exact = (double)number;
        const double rounded = power < 0 ? exact / POWERS[-power] : exact * POWERS[power];
        *value = negative ? -rounded : rounded;
    }
    return cursor;
}

/* Read lines "relevance qid:number index:value ... # comment" into a table. At the first line of
 * another form, or with an index above `limit`, return FF_LETOR_UNUSUAL: only the exact parser in
 * Python reads or refuses such lines. Values that only the exact parser rounds correctly are listed
 * in table->hard. */
int ff_letor_parse(const char *text, int64_t size, int64_t limit, ff_letor_table *table)
{
    table->rows = table->largest = table->hards = 0;
    if (!size || text[size - 1] != '\n')
        return FF_LETOR_UNUSUAL;
    /* The text ends with a line end, so no loop runs past it. */
    const char *cursor = text, *end = text + size;
    const int64_t width = table->width;
    int64_t largest = 0;
    while (cursor < end) {
        while (is_blank(*cursor))
            cursor++;
        /* Skip a comment, and a line without a row. */
        if (*cursor == '#')
            cursor = memchr(cursor, '\n', (size_t)(end - cursor));
        if (*cursor == '\n') {
            cursor++;
            continue;
        }
        /* The relevance, then qid:number. */
        const int64_t row = table->rows;
        int64_t relevance, last = 0;
        cursor = parse_integer(cursor, 10, &relevance);
        if (!cursor || relevance > INT32_MAX || !is_blank(*cursor))
            return FF_LETOR_UNUSUAL;
        while (is_blank(*cursor))
            cursor++;
        if (end - cursor < 5 || memcmp(cursor, "qid:", 4))
            return FF_LETOR_UNUSUAL;
        cursor = parse_integer(cursor + 4, 18, &table->qid[row]);
        if (!cursor || !ends_token(*cursor))
            return FF_LETOR_UNUSUAL;
        table->relevance[row] = (int32_t)relevance;
        /* Pairs index:value up to the end of the line, or to a comment. */
        float *values = table->values + row * width;
        for (;;) {
            while (is_blank(*cursor))
                cursor++;
            if (*cursor == '#')
                cursor = memchr(cursor, '\n', (size_t)(end - cursor));
            if (*cursor == '\n')
                break;
            int64_t index;
            cursor = parse_integer(cursor, 9, &index);
            if (!cursor || *cursor != ':' || index <= last || index > limit)
                return FF_LETOR_UNUSUAL;
            last = index;
            const char *token = ++cursor;
            double value = 0.0;
            int hard;
            cursor = parse_decimal(token, &value, &hard);
            if (!cursor || !ends_token(*cursor))
                return FF_LETOR_UNUSUAL;
            if (index > width)
                continue; /* read again, into a wider table */
            values[index - 1] = (float)value;
            if (hard) {
                int64_t *triple = table->hard + 3 * table->hards++;
                triple[0] = token - text;
                triple[1] = cursor - text;
                triple[2] = row * width + index - 1;
            }
        }
        largest = last > largest ? last : largest;
        cursor++;
        table->rows++;
    }
    table->largest = largest;
    return largest > width ? FF_LETOR_WIDER : FF_LETOR_READ;
}
