/* How principal coordinates of a query lie in memory: lots of up to 64 actions, one after the
 * other. */
#ifndef FF_PRINCIPAL_PARTS_H
#define FF_PRINCIPAL_PARTS_H

#include "ff_principal.h"
#include "ff_screen_i16_parts.h"

/* Vectors of actions in the lot that begins with vector `first` of so many. */
FF_INLINE int64_t lot_width(int64_t vectors, int64_t first)
{
    return vectors - first < PANEL_VECTORS ? 2 : PANEL_VECTORS;
}

/* Of a lot: z = Q x as actions are in 16 bits, and bounds on ||x - Q'z||. */
typedef struct {
    const measured *known;
    const i32s *panel;
    const float *rest;
} principal_lot;

FF_INLINE int64_t lot_bytes(int64_t rank, int64_t width)
{
    return width * ((int64_t)sizeof(measured) + FF_WIDE * pairs_of(rank) + FF_WIDE);
}

FF_INLINE principal_lot lot_at(const char *block, int64_t rank, int64_t width)
{
    const measured *known = (const measured *)block;
    const i32s *panel = (const i32s *)(known + width);
    return (principal_lot){known, panel, (const float *)(panel + width * pairs_of(rank))};
}
#endif
