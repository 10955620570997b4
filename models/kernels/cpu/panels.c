/* Matmuls of few rows with a weight matrix that is stored in panels.
 *
 *     out[m, n] = sum over k of x[m, k] * w[n, k] + base[m, n]        float32, in the same order for every M
 *
 * The weights are float32, or bfloat16, of which memory delivers twice as many per second. If x is bfloat16 as well,
 * and the processor multiplies bfloat16, one instruction adds two products to a sum.
 *
 * A sum is computed as partial sums over parts of k, and the base is added last: rounding errors grow with the sum, so
 * that one long sum, or one that starts with a larger base, would have errors several times as large.
 *
 * A panel holds WIDTH rows n of w, step by step, so that it is read sequentially: w[n, k] is
 * panels[n / WIDTH][k][n % WIDTH] in float32, and panels[n / WIDTH][k / 2][n % WIDTH][k % 2] in bfloat16, both padded
 * with zeros. With few rows a matmul takes as long as reading the weights, with more rows as long as its arithmetic; in
 * the second case, from FETCHED rows on, the weights AHEAD bytes later are prefetched. With fewer rows the processor's
 * own prefetching suffices. Every block of rows prefetches: when only the first one did, 10 rows were slower.
 *
 * Small float32 matrices may lie column by column instead, w[n, k] at w[k * apart + n]: a panel is then WIDTH rows of
 * each column. The last panel of such a matrix begins early enough to be whole.
 */

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define WIDTH 48
#define VECTORS (WIDTH / LANES) /* of a panel */
#if LANES == 16
#define ROWS 8                  /* of x at once: as many sums as registers hold beside the rest */
#define AT_ONCE(rows) VECTORS   /* vectors that so many rows are multiplied with at once: a part of the panel */
#else
#define ROWS 4
#define AT_ONCE(rows) ((rows) <= 2 ? VECTORS : VECTORS / 2)
#endif
#define STEP (WIDTH * 4)        /* bytes: of one k in float32, of two in bfloat16 */
#define DEPTH 192               /* steps of a panel at once, at most: 36 KiB */
#define PARTS 6                 /* of a sum at least, where it is that long: one unbroken sum of some 100 is rounded */
#define SHORT 16                /* two to three times as much as PyTorch's of few rows. No part need be shorter */
#define CHUNK 96                /* rows of x that go over all panels before the next do, so that they stay in a cache */
#define LINE 64                 /* bytes that are fetched together */
#define AHEAD (128 * STEP)      /* bytes from what is read to what is fetched: 24 KiB */
#define COPIED 2                /* blocks of rows, from which on columns of a matrix without panels are brought together:
                                 * each lies in a page of its own */
#define FETCHED 6               /* products of each vector of w, from which on it is */

/* Types of x and w: both float32, float32 and bfloat16, or both bfloat16. */
enum { FLOATS, HALVES, PAIRS };

#define ARGUMENTS                                                                                                  \
    const float *x, const char *w, ptrdiff_t apart, int onto, const float *base, ptrdiff_t base_step, float *out,  \
        ptrdiff_t out_step, int steps

#if LANES == 16 && defined(__AVX512BF16__)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

INLINE vec pair_sum(vec sum, vec pair, const float *x)
{
#if HAS_PAIRS
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)pair, (__m512bh)(vec)_mm512_set1_ps(*x));
#else
    return sum; /* not reached: see pardec_pairs */
#endif
}

/* `rows` rows of x, step by step, times `vectors` vectors of a panel, added to what is there where it goes `onto` that,
 * and to the base where there is one. `fetch` is for the compiler to know: with a branch at each step the sums do not
 * stay in registers. */
INLINE void tile_of(const int rows, const int vectors, const int fetch, const int kind, ARGUMENTS)
{
    if (kind == PAIRS && !HAS_PAIRS) return; /* nothing to compile */
    vec sum[ROWS][VECTORS], column[VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            sum[i][j] = (vec){0};
    for (int step = 0; step < steps; step++) {
        UNROLL for (int j = 0; j < vectors; j++)
            column[j] = *(const vec *)(w + j * LANES * 4);
        if (LANES == 8 && kind == FLOATS)
            UNROLL for (int j = 0; j < vectors; j++)
                KEPT(column[j]);
        if (fetch)
            UNROLL for (int line = 0; line < STEP / LINE; line++)
                __builtin_prefetch(w + AHEAD + line * LINE, 0, 2);
        if (kind == PAIRS) {
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int j = 0; j < vectors; j++)
                    sum[i][j] = pair_sum(sum[i][j], column[j], x + i);
        } else if (kind == FLOATS) {
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int j = 0; j < vectors; j++)
                    sum[i][j] = fused_add(column[j], spread(x[i]), sum[i][j]);
        } else if (LANES == 16) {
            UNROLL for (int j = 0; j < vectors; j++) {
                vec even = (vec)((ints)column[j] << 16), odd = (vec)((ints)column[j] & (int)0xffff0000);
                UNROLL for (int i = 0; i < rows; i++)
                    sum[i][j] = fused_add(even, spread(x[i]), sum[i][j]);
                UNROLL for (int i = 0; i < rows; i++)
                    sum[i][j] = fused_add(odd, spread(x[rows + i]), sum[i][j]);
            }
        } else { /* a number of x takes a register here: it serves all vectors */
            vec part[VECTORS];
            UNROLL for (int j = 0; j < vectors; j++)
                part[j] = (vec)((ints)column[j] << 16);
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int j = 0; j < vectors; j++)
                    sum[i][j] = fused_add(part[j], spread(x[i]), sum[i][j]);
            UNROLL for (int j = 0; j < vectors; j++)
                part[j] = (vec)((ints)*(const vec *)(w + j * LANES * 4) & (int)0xffff0000);
            UNROLL for (int i = 0; i < rows; i++)
                UNROLL for (int j = 0; j < vectors; j++)
                    sum[i][j] = fused_add(part[j], spread(x[rows + i]), sum[i][j]);
        }
        x += kind == HALVES ? 2 * rows : rows;
        w += apart;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            vec *to = (vec *)(out + i * out_step + j * LANES);
            if (onto) sum[i][j] += *to;
            if (base) sum[i][j] += *(const vec *)(base + i * base_step + j * LANES);
            *to = sum[i][j];
        }
}

/* The same with the whole panel. */
INLINE void tile(const int rows, const int fetch, const int kind, ARGUMENTS)
{
    const int vectors = AT_ONCE(rows);
    tile_of(rows, vectors, fetch, kind, x, w, apart, onto, base, base_step, out, out_step, steps);
    if (vectors == VECTORS) return;
    const int n = vectors * LANES;
    base = base ? base + n : NULL;
    tile_of(rows, vectors, 0, kind, x, w + n * 4, apart, onto, base, base_step, out + n, out_step, steps);
}

typedef void (*Tile)(ARGUMENTS);

#define TILE(rows, fetch, kind)                                                                                    \
    static void tile_##rows##_##fetch##_##kind(ARGUMENTS)                                                          \
    {                                                                                                              \
        tile(rows, fetch, kind, x, w, apart, onto, base, base_step, out, out_step, steps);                         \
    }
#define TILES(rows, kind) TILE(rows, 0, kind) TILE(rows, 1, kind)
#define OF(rows, kind) {tile_##rows##_0_##kind, tile_##rows##_1_##kind}
#if ROWS == 8
#define ALL(kind)                                                                                                  \
    TILES(1, kind) TILES(2, kind) TILES(3, kind) TILES(4, kind) TILES(5, kind) TILES(6, kind) TILES(7, kind)       \
    TILES(8, kind)
#define EACH(kind)                                                                                                 \
    {OF(1, kind), OF(2, kind), OF(3, kind), OF(4, kind), OF(5, kind), OF(6, kind), OF(7, kind), OF(8, kind)}
#else
#define ALL(kind) TILES(1, kind) TILES(2, kind) TILES(3, kind) TILES(4, kind)
#define EACH(kind) {OF(1, kind), OF(2, kind), OF(3, kind), OF(4, kind)}
#endif

ALL(FLOATS) ALL(HALVES) ALL(PAIRS)

static const Tile TILE_OF[3][ROWS][2] = {EACH(FLOATS), EACH(HALVES), EACH(PAIRS)};

/* The first row of block `b` if `rows` rows are divided into `blocks` blocks. */
static int begin(int rows, int blocks, int b) { return (int)((ptrdiff_t)rows * b / blocks); }

/* The number of partial sums of `pairs` pairs: for a long sum by the size of the cache in float32, for a short one by
 * the rounding error. It does not depend on the type, so that the same numbers give the same bits. */
static int parts_of(int pairs)
{
    int fit = (2 * pairs + DEPTH - 1) / DEPTH, few = least(PARTS, (2 * pairs + SHORT - 1) / SHORT);
    return fit > few ? fit : few;
}

static int blocks_of(int rows) { return (rows + ROWS - 1) / ROWS; }

/* `rows` rows of `x`, transposed by `turn`, times the panel at `w` with `columns` columns. `length` is the number of
 * entries of a row of x: numbers, or pairs. */
static void strip(const float *x, const char *w, ptrdiff_t apart, int kind, const float *base, ptrdiff_t base_step,
                  float *out, ptrdiff_t out_step, int rows, int columns, int length)
{
    int each = kind == HALVES ? 2 : 1, steps = length / each; /* entries of x per step */
    int pairs = kind == FLOATS ? (length + 1) / 2 : steps, pair = kind == FLOATS ? 2 : 1; /* steps per pair */
    int parts = parts_of(pairs), blocks = blocks_of(rows), fetch = rows * each >= FETCHED && apart == STEP;
    int early = apart == STEP ? 0 : WIDTH - columns; /* rows before the panel's that are read instead of missing ones */
    float edge[ROWS * WIDTH], copy[(DEPTH + 2) * WIDTH];
    for (int part = 0; part < parts; part++) {
        int step = begin(pairs, parts, part) * pair;
        int count_of_steps = least(begin(pairs, parts, part + 1) * pair, steps) - step;
        const char *here = w + (ptrdiff_t)step * apart - 4 * early;
        ptrdiff_t there = apart;
        if (apart != STEP && blocks > COPIED) {
            for (int k = 0; k < count_of_steps; k++) memcpy(copy + k * WIDTH, here + k * apart, STEP);
            here = (const char *)copy, there = STEP;
        }
        for (int b = 0; b < blocks; b++) {
            int m = begin(rows, blocks, b), count = begin(rows, blocks, b + 1) - m;
            Tile run = TILE_OF[kind][count - 1][fetch];
            float *to = out + m * out_step;
            const float *from = base && part == parts - 1 ? base + m * base_step : NULL;
            const float *entries = x + (ptrdiff_t)m * length + (ptrdiff_t)step * each * count;
            if (columns == WIDTH) {
                run(entries, here, there, part > 0, from, base_step, to, out_step, count_of_steps);
            } else { /* the last panel: memory after its rows must not be written */
                run(entries, here, there, 0, NULL, 0, edge, WIDTH, count_of_steps);
                for (int i = 0; i < count; i++)
                    for (int n = 0; n < columns; n++) {
                        float sum = edge[i * WIDTH + early + n] + (part ? to[i * out_step + n] : 0);
                        to[i * out_step + n] = sum + (from ? from[i * base_step + n] : 0);
                    }
            }
        }
    }
}

INLINE void turned(const int count, const float *x, ptrdiff_t step, float *to, int length, int even)
{
    for (int k = 0; k < length; k++)
        UNROLL for (int i = 0; i < count; i++)
            to[k * count + i] = x[i * step + k];
    for (int i = 0; i < count * (even - length); i++)
        to[length * count + i] = 0;
}

/* Transposes the rows of x block by block, so that a tile reads contiguous memory; pads rows to `even` numbers. */
static void turn(const float *x, ptrdiff_t step, float *to, int rows, int length, int even)
{
    for (int b = 0, blocks = blocks_of(rows); b < blocks; b++) {
        int m = begin(rows, blocks, b), count = begin(rows, blocks, b + 1) - m;
        const float *from = x + m * step;
        float *block = to + (ptrdiff_t)m * even;
        switch (count) {
        case 1: turned(1, from, step, block, length, even); break;
        case 2: turned(2, from, step, block, length, even); break;
        case 3: turned(3, from, step, block, length, even); break;
        case 4: turned(4, from, step, block, length, even); break;
        case 5: turned(5, from, step, block, length, even); break;
        case 6: turned(6, from, step, block, length, even); break;
        case 7: turned(7, from, step, block, length, even); break;
        default: turned(8, from, step, block, length, even);
        }
    }
}

/* Whether `kind` PAIRS can be multiplied: the processor for which this was compiled has the instruction. */
int pardec_pairs(void) { return HAS_PAIRS; }

/* x [rows, length] with row stride `step`, times panels of `columns` rows, plus `base` (NULL: zeros; row stride
 * `base_step`, 0 if all rows are the same) -> out [rows, columns]. `kind` gives the types; for PAIRS, length and step
 * count pairs. `apart`, if it is not 0: w has at least WIDTH rows and lies column by column, so far apart.
 * Returns 0, or 1 if memory runs out. */
int pardec_product(const float *x, ptrdiff_t step, const char *w, ptrdiff_t apart, int kind, const float *base,
                   ptrdiff_t base_step, float *out, int rows, int columns, int length, int threads)
{
    int panels = (columns + WIDTH - 1) / WIDTH;
    int even = kind == HALVES ? (length + 1) / 2 * 2 : length;
    ptrdiff_t panel = apart ? STEP : (ptrdiff_t)(kind == HALVES ? even / 2 : length) * STEP; /* bytes */
    float *buffer = NULL;
    if ((rows > 1 || even > length) && !(buffer = malloc(sizeof(float) * least(CHUNK, rows) * even))) return 1;
    for (int m = 0; m < rows; m += CHUNK) {
        int count = least(CHUNK, rows - m);
        if (buffer) turn(x + m * step, step, buffer, count, length, even);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
        for (int p = 0; p < panels; p++) {
            int n = p * WIDTH;
            const float *onto = base ? base + m * base_step + n : NULL;
            strip(buffer ? buffer : x, w + p * panel, apart ? 4 * apart : STEP, kind, onto, base_step,
                  out + (ptrdiff_t)m * columns + n, columns, count, least(WIDTH, columns - n), even);
        }
    }
    free(buffer);
    return 0;
}
