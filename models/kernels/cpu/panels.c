/* Products of few rows with a matrix of weights that lies in panels.
 *
 *     out[m, n] = sum over k of x[m, k] * w[n, k] + base[m, n]        float32, in one order, whatever M is
 *
 * A sum is made of the sums over parts of k, and the base comes last: a rounding costs what the sum has grown to, so
 * that one long sum, or one begun with a base that is larger than it, would lose several times as much.
 *
 * A panel holds WIDTH rows n of w, k by k, so that what is read next always lies next: w[n, k] is
 * panels[n / WIDTH][k][n % WIDTH], the last panel filled up with zeros. While ROWS rows of x go over a part of a panel
 * that the cache next to the processor holds, the part that comes after it is fetched: with few rows a product takes as
 * long as reading the weights does, and with more as long as its arithmetic.
 */

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define VECTORS 3               /* of a panel */
#define WIDTH (LANES * VECTORS)
#define ROWS 8                  /* of x at once: ROWS * VECTORS sums are as many as registers hold beside the rest */
#define MOST 4                  /* panels that go together where there are fewer rows */
#define DEPTH 192               /* numbers k of a panel at once, at most: 36 KiB */
#define PARTS 4                 /* of a sum at least, where it is that long: one unbroken sum of some 100 is rounded */
#define SHORT 16                /* two to three times as much as PyTorch's of few rows. No part need be shorter */
#define CHUNK 96                /* rows of x that go over all panels before the next do, so that they stay in a cache */
#define LINE 16                 /* numbers that are fetched together */

#define ARGUMENTS                                                                                                  \
    const float *x, const float *w, ptrdiff_t apart, int onto, const float *base, ptrdiff_t base_step, float *out, \
        ptrdiff_t out_step, int depth, const float *ahead, ptrdiff_t pace

/* `rows` rows of x, k by k, times `panels` panels that lie `apart`, added to what is there where it goes `onto` that,
 * and to the base where there is one. Each k fetches `lines` lines of every panel from
 * `ahead` on, which moves by `pace`. */
INLINE void tile(const int rows, const int panels, const int lines, ARGUMENTS)
{
    vec sum[ROWS][MOST * VECTORS], column[MOST * VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < panels * VECTORS; j++)
            sum[i][j] = (vec){0};
    for (int k = 0; k < depth; k++) {
        UNROLL for (int j = 0; j < panels * VECTORS; j++)
            column[j] = *(const vec *)(w + j / VECTORS * apart + j % VECTORS * LANES);
        UNROLL for (int line = 0; line < lines * panels; line++)
            __builtin_prefetch(ahead + line / lines * apart + line % lines * LINE, 0, 2);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < panels * VECTORS; j++)
                sum[i][j] += column[j] * x[i];
        x += rows;
        w += WIDTH;
        ahead += pace;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < panels * VECTORS; j++) {
            vec *to = (vec *)(out + i * out_step + j * LANES);
            if (onto) sum[i][j] += *to;
            if (base) sum[i][j] += *(const vec *)(base + i * base_step + j * LANES);
            *to = sum[i][j];
        }
}

typedef void (*Tile)(ARGUMENTS);

#define TILE(rows, panels, lines)                                                                                  \
    static void tile_##rows##_##panels##_##lines(ARGUMENTS)                                                        \
    {                                                                                                              \
        tile(rows, panels, lines, x, w, apart, onto, base, base_step, out, out_step, depth, ahead, pace);                \
    }
#define TILES(rows) TILE(rows, 1, 1) TILE(rows, 1, 2) TILE(rows, 1, 3)
#define NAMES(rows) {tile_##rows##_1_1, tile_##rows##_1_2, tile_##rows##_1_3}

TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7) TILES(8)
TILE(1, 4, 3) TILE(2, 2, 3) TILE(3, 2, 3)

static const Tile TILE_OF[ROWS][3] = {NAMES(1), NAMES(2), NAMES(3), NAMES(4), NAMES(5), NAMES(6), NAMES(7), NAMES(8)};

/* Row where block `b` of `blocks` begins, in which `rows` rows go. */
static int begin(int rows, int blocks, int b) { return (int)((ptrdiff_t)rows * b / blocks); }

/* Parts of a sum of `length` numbers: of a long one by what the cache holds, of a short one by what it is rounded by. */
static int parts_of(int length)
{
    int fit = (length + DEPTH - 1) / DEPTH, few = least(PARTS, (length + SHORT - 1) / SHORT);
    return fit > few ? fit : few;
}

static int blocks_of(int rows) { return (rows + ROWS - 1) / ROWS; }

/* `rows` rows of `x`, turned (see `turn`), times the panels at `w`, `columns` wide in all. */
static void strip(const float *x, const float *w, const float *base, ptrdiff_t base_step, float *out,
                  ptrdiff_t out_step, int rows, int columns, int panels, int length)
{
    int parts = parts_of(length), blocks = blocks_of(rows);
    int pace = (WIDTH + blocks - 1) / blocks, lines = (pace + LINE - 1) / LINE; /* a block's share of what is fetched */
    float edge[ROWS * WIDTH];
    for (int part = 0; part < parts; part++) {
        int k = begin(length, parts, part), depth = begin(length, parts, part + 1) - k;
        const float *here = w + (ptrdiff_t)k * WIDTH, *ahead = here + (ptrdiff_t)depth * WIDTH;
        for (int b = 0; b < blocks; b++) {
            int m = begin(rows, blocks, b), count = begin(rows, blocks, b + 1) - m;
            Tile run = panels == 4 ? tile_1_4_3
                : panels == 2 ? (count == 2 ? tile_2_2_3 : tile_3_2_3) : TILE_OF[count - 1][lines - 1];
            float *to = out + m * out_step;
            const float *from = base && part == parts - 1 ? base + m * base_step : NULL;
            ptrdiff_t apart = (ptrdiff_t)length * WIDTH;
            const float *given = x + (ptrdiff_t)m * length + (ptrdiff_t)k * count;
            if (columns == panels * WIDTH) {
                run(given, here, apart, part > 0, from, base_step, to, out_step, depth, ahead, pace);
            } else { /* the last panel: what lies behind its rows is none of ours */
                run(given, here, apart, 0, NULL, 0, edge, WIDTH, depth, ahead, pace);
                for (int i = 0; i < count; i++)
                    for (int n = 0; n < columns; n++) {
                        float sum = edge[i * WIDTH + n] + (part ? to[i * out_step + n] : 0);
                        to[i * out_step + n] = sum + (from ? from[i * base_step + n] : 0);
                    }
            }
            ahead += (ptrdiff_t)pace * depth;
        }
    }
}

INLINE void turned(const int count, const float *x, ptrdiff_t step, float *to, int length)
{
    for (int k = 0; k < length; k++)
        UNROLL for (int i = 0; i < count; i++)
            to[k * count + i] = x[i * step + k];
}

/* The rows of x, block by block, each k by k: what a tile reads lies together. */
static void turn(const float *x, ptrdiff_t step, float *to, int rows, int length)
{
    for (int b = 0, blocks = blocks_of(rows); b < blocks; b++) {
        int m = begin(rows, blocks, b), count = begin(rows, blocks, b + 1) - m;
        const float *from = x + m * step;
        float *block = to + (ptrdiff_t)m * length;
        switch (count) {
        case 1: turned(1, from, step, block, length); break;
        case 2: turned(2, from, step, block, length); break;
        case 3: turned(3, from, step, block, length); break;
        case 4: turned(4, from, step, block, length); break;
        case 5: turned(5, from, step, block, length); break;
        case 6: turned(6, from, step, block, length); break;
        case 7: turned(7, from, step, block, length); break;
        default: turned(8, from, step, block, length);
        }
    }
}

/* x [rows, length] of rows `step` apart, times panels of `columns` rows, onto `base` (NULL: zeros; its rows lie
 * `base_step` apart, 0 where all are one) -> out [rows, columns]. Returns 0, or 1 where there is no memory. */
int pardec_product(const float *x, ptrdiff_t step, const float *w, const float *base, ptrdiff_t base_step, float *out,
                   int rows, int columns, int length, int threads)
{
    int together = rows == 1 ? 4 : rows <= 3 ? 2 : 1, panels = (columns + WIDTH - 1) / WIDTH;
    float *held = NULL;
    if (rows > 1 && !(held = malloc(sizeof(float) * least(CHUNK, rows) * length))) return 1;
    for (int m = 0; m < rows; m += CHUNK) {
        int count = least(CHUNK, rows - m);
        if (held) turn(x + m * step, step, held, count, length);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
        for (int group = 0; group < (panels + together - 1) / together; group++)
            for (int p = group * together, end = least(p + together, panels), some; p < end; p += some) {
                int n = p * WIDTH, width = columns - n;
                some = width >= together * WIDTH ? together : 1; /* a last panel that is not full goes alone */
                if (width > some * WIDTH) width = some * WIDTH;
                strip(held ? held : x, w + (ptrdiff_t)n * length, base ? base + m * base_step + n : NULL, base_step,
                      out + (ptrdiff_t)m * columns + n, columns, count, width, some, length);
            }
    }
    free(held);
    return 0;
}
