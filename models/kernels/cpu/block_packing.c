/* Blocks of GGUF files repacked into panels of 32 rows, in the layout that blocks.py describes. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "block_types.h"

/* Bytes of a block; of the codes, the scales and the head of a row in a panel; where the codes begin in a block. */
static const struct { int size, codes, scales, head, at; } TYPES[] = {
    {18, 16, 2, 0, 2},   {20, 16, 4, 0, 4},   {22, 20, 2, 0, 6},    {24, 20, 4, 0, 8},    {34, 32, 2, 0, 2},
    {18, 16, 2, 0, 2},   {17, 16, 1, 0, 1},   {144, 16, 2, 4, 16},  {176, 20, 2, 4, 48},  {210, 24, 2, 2, 0}};

/* The 32 codes of group g of a row. */
static void codes_of(int kind, const uint8_t *row, int g, uint8_t *q)
{
    if (kind < Q4_K) {
        const uint8_t *block = row + (ptrdiff_t)g * TYPES[kind].size, *codes = block + TYPES[kind].at;
        if (kind == Q8_0) {
            memcpy(q, codes, GROUP);
            return;
        }
        for (int j = 0; j < 16; j++) q[j] = codes[j] & 15, q[16 + j] = codes[j] >> 4;
        if (TYPES[kind].codes == 20) {
            uint32_t fifth;
            memcpy(&fifth, codes - 4, 4);
            for (int j = 0; j < GROUP; j++) q[j] |= (uint8_t)(fifth >> j & 1) << 4;
        }
        return;
    }
    const uint8_t *block = row + (ptrdiff_t)(g / SUPER) * TYPES[kind].size;
    int own = g % SUPER;
    if (kind == Q6_K) {
        const uint8_t *low = block + own / 4 * 64 + own % 2 * 32, *high = block + 128 + own / 4 * 32;
        int shift = own % 4 < 2 ? 0 : 4, more = 2 * (own % 4);
        for (int j = 0; j < GROUP; j++) q[j] = (low[j] >> shift & 15) | (high[j] >> more & 3) << 4;
        return;
    }
    const uint8_t *codes = block + TYPES[kind].at + own / 2 * 32;
    for (int j = 0; j < GROUP; j++) q[j] = codes[j] >> (own % 2 * 4) & 15;
    if (kind == Q5_K)
        for (int j = 0; j < GROUP; j++) q[j] |= (block[16 + j] >> own & 1) << 4;
}

/* Scales of group g of a row, as the r-th of the panel. */
static void put_scales(int kind, const uint8_t *row, int g, int r, uint8_t *out)
{
    if (kind < Q4_K) {
        const uint8_t *block = row + (ptrdiff_t)g * TYPES[kind].size;
        if (kind == MXFP4) out[r] = block[0];
        else memcpy(out + 2 * r, block, 2);
        if (TYPES[kind].scales == 4) memcpy(out + 2 * WIDTH + 2 * r, block + 2, 2);
        return;
    }
    const uint8_t *block = row + (ptrdiff_t)(g / SUPER) * TYPES[kind].size;
    int own = g % SUPER;
    if (kind == Q6_K) {
        out[r] = block[192 + 2 * own], out[WIDTH + r] = block[193 + 2 * own];
        return;
    }
    const uint8_t *six = block + 4;     /* 12 bytes: scales and minima of 6 bits */
    out[r] = own < 4 ? six[own] & 63 : (six[own + 4] & 15) | six[own - 4] >> 6 << 4;
    out[WIDTH + r] = own < 4 ? six[own + 4] & 63 : six[own + 4] >> 4 | six[own] >> 6 << 4;
}

static void put_codes(int kind, const uint8_t *q, int r, uint8_t *out)
{
    int bits = TYPES[kind].codes;
    if (bits == 32) {
        for (int k = 0; k < GROUP; k++) out[k / 4 * WIDTH * 4 + r * 4 + k % 4] = q[k];
        return;
    }
    for (int k = 0; k < 16; k++) out[k / 4 * WIDTH * 4 + r * 4 + k % 4] = (q[k] & 15) | (uint8_t)(q[16 + k] << 4);
    uint8_t *planes = out + WIDTH * 16 + r * 4;
    for (int k = 0; k < 16; k++) {
        if (bits == 20) planes[k % 4] |= q[k] >> 4 << k / 4 | q[16 + k] >> 4 << (k / 4 + 4);
        if (bits == 24) {
            planes[k % 4] |= q[k] >> 4 << 2 * (k / 4);
            planes[WIDTH * 4 + k % 4] |= q[16 + k] >> 4 << 2 * (k / 4);
        }
    }
}

/* raw [count, bytes of a row] -> out [ceil(count / 32), bytes of a panel], which is zero before. */
int pardec_pack(int kind, const uint8_t *raw, int count, int columns, uint8_t *out, int threads)
{
    int groups = columns / GROUP, head = TYPES[kind].head * WIDTH;
    ptrdiff_t group = (TYPES[kind].scales + TYPES[kind].codes) * WIDTH;
    ptrdiff_t line = (ptrdiff_t)TYPES[kind].size * (head ? groups / SUPER : groups);
    ptrdiff_t panel = groups * group + (head ? (ptrdiff_t)(groups / SUPER) * head : 0);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int p = 0; p < (count + WIDTH - 1) / WIDTH; p++)
        for (int g = 0; g < groups; g++) {
            uint8_t *to = out + p * panel + g * group + (head ? (ptrdiff_t)(g / SUPER + 1) * head : 0);
            for (int r = 0; r < WIDTH && p * WIDTH + r < count; r++) {
                const uint8_t *row = raw + (ptrdiff_t)(p * WIDTH + r) * line;
                uint8_t q[GROUP];
                if (head && g % SUPER == 0) {
                    const uint8_t *block = row + (ptrdiff_t)(g / SUPER) * TYPES[kind].size;
                    memcpy(to - head + 2 * r, kind == Q6_K ? block + 208 : block, 2);
                    if (kind != Q6_K) memcpy(to - head + 2 * WIDTH + 2 * r, block + 2, 2);
                }
                put_scales(kind, row, g, r, to);
                codes_of(kind, row, g, q);
                put_codes(kind, q, r, to + TYPES[kind].scales * WIDTH);
            }
        }
    return 0;
}
