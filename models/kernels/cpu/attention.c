/* Attention of few queries over many slots, all of which are seen but for some of the last.
 *
 *     out[q] = sum over s of softmax_s(q . k[s] / sqrt(D) + mask[q, s]) v[s]                                 float32
 *
 * with a mask of 0 and -infinity over the slots from `from` on, such as a draft's nodes; each query sees one at least.
 *
 * Vectors hold queries: one number of a key is multiplied with 16 of them, so that scores lie slot by slot and maxima,
 * exponentials and sums never cross a vector. A few that are left over go alone, and there vectors hold dimensions.
 * A score is a sum of sums over PART dimensions, and scaled once the highest is taken off: what it is rounded by grows
 * with what it has grown to, and an exponential turns it into as large a part of the weight.
 * Slots are taken BLOCK at a time, each block's sums made for themselves and then added to what was summed before, which
 * is scaled when a higher score comes; while a block is worked on the next one's keys and values are fetched.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define VECTORS 3               /* of queries at once, at most */
#define ROWS 8                  /* slots, or dimensions, at once */
#define BLOCK 64                /* slots */
#define PART 8                  /* dimensions whose products are summed for themselves */
#define ALONE 4                 /* queries that go alone, at most */
#define LOWEST -1e30f
#define LINE 16                 /* numbers that are fetched together */

#define ARGUMENTS                                                                                                  \
    const float *x, ptrdiff_t row_step, ptrdiff_t step, const float *w, float *out, int depth, int onto

/* out[rows, n] (+)= x[rows, depth] @ w[depth, n], n = `vectors` vectors; x[i, k] is x[i * row_step + k * step]. */
INLINE void tile(const int rows, const int vectors, ARGUMENTS)
{
    vec sum[ROWS][VECTORS];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            sum[i][j] = (vec){0};
    for (int k = 0; k < depth; k++) {
        vec column[VECTORS];
        UNROLL for (int j = 0; j < vectors; j++)
            column[j] = *(const vec *)(w + j * LANES);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < vectors; j++)
                sum[i][j] += column[j] * x[i * row_step];
        x += step;
        w += vectors * LANES;
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            vec *to = (vec *)(out + (i * vectors + j) * LANES);
            if (onto) sum[i][j] += *to;
            *to = sum[i][j];
        }
}

typedef void (*Tile)(ARGUMENTS);

/* of keys, whose numbers lie together, and of values, whose dimensions do */
#define TILE(rows, vectors)                                                                                        \
    static void keys_##rows##_##vectors(ARGUMENTS) { tile(rows, vectors, x, row_step, 1, w, out, depth, onto); }   \
    static void values_##rows##_##vectors(ARGUMENTS) { tile(rows, vectors, x, 1, step, w, out, depth, onto); }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3)
#define NAMES(of, rows) {of##_##rows##_1, of##_##rows##_2, of##_##rows##_3}

TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7) TILES(8)

static const Tile KEYS[ROWS][VECTORS] = {NAMES(keys, 1), NAMES(keys, 2), NAMES(keys, 3), NAMES(keys, 4),
                                         NAMES(keys, 5), NAMES(keys, 6), NAMES(keys, 7), NAMES(keys, 8)};
static const Tile VALUES[ROWS][VECTORS] = {NAMES(values, 1), NAMES(values, 2), NAMES(values, 3), NAMES(values, 4),
                                           NAMES(values, 5), NAMES(values, 6), NAMES(values, 7), NAMES(values, 8)};

static void fetch(const float *row, ptrdiff_t step, int count, int dim)
{
    for (int s = 0; s < count; s++, row += step)
        for (int d = 0; d < dim; d += LINE) __builtin_prefetch(row + d, 0, 2);
}

/* Scores of `slots` slots become weights; what came before, `out` [dim] and `total`, goes down to the new highest. */
INLINE void weigh(const int vectors, float *scores, int slots, float scale, vec *highest, vec *total, float *out,
                  int dim)
{
    UNROLL for (int j = 0; j < vectors; j++) {
        vec top = highest[j], mass = {0};
        for (int s = 0; s < slots; s++) top = larger(top, *(vec *)(scores + (s * vectors + j) * LANES));
        vec share = power((highest[j] - top) * scale);
        for (int s = 0; s < slots; s++) {
            vec *score = (vec *)(scores + (s * vectors + j) * LANES);
            *score = power((*score - top) * scale);
            mass += *score;
        }
        for (int d = 0; d < dim; d++) *(vec *)(out + (d * vectors + j) * LANES) *= share;
        total[j] = total[j] * share + mass;
        highest[j] = top;
    }
}

typedef struct {
    const float *q, *k, *v;
    float *out;
    ptrdiff_t q_query, q_head, k_slot, v_slot, out_query, out_head;
    const float *mask;
    ptrdiff_t mask_query;
    int queries, dim, slots, from;
    float scale;
} Head;

INLINE const float *query_of(const Head *one, int at)
{
    return one->q + at / one->queries * one->q_head + at % one->queries * one->q_query;
}

INLINE float *out_of(const Head *one, int at)
{
    return one->out + at / one->queries * one->out_head + at % one->queries * one->out_query;
}

/* The mask of a query over the slots from `from` on. */
INLINE const float *mask_of(const Head *one, int at) { return one->mask + at % one->queries * one->mask_query; }

/* One query over `slots` slots, with vectors along its dimensions; `mask` is of the slots from `from` on. */
static void alone(const Head *one, const float *query, const float *k, const float *v, int slots, const float *mask,
                  int from, float *highest, float *total, float *out)
{
    vec weights[BLOCK / LANES], mass = {0};
    float *weight = (float *)weights, top = *highest;
    for (int s = 0; s < BLOCK; s++) weight[s] = LOWEST;
    for (int s = 0; s < slots; s++) {
        vec sum = {0};
        for (int d = 0; d < one->dim; d += LANES)
            sum += *(const vec *)(query + d) * *(const vec *)(k + s * one->k_slot + d);
        weight[s] = sum_of(sum);
        if (s >= from) weight[s] += mask[s - from];
        top = weight[s] > top ? weight[s] : top;
    }
    vec share = power(every((*highest - top) * one->scale));
    for (int j = 0; j < BLOCK / LANES; j++) {
        weights[j] = power((weights[j] - top) * one->scale);
        mass += j * LANES < slots ? weights[j] : (vec){0};
    }
    for (int d = 0; d < one->dim; d += LANES) {
        vec sum = {0}, other = {0};
        for (int s = 0; s < slots - 1; s += 2) {
            sum += *(const vec *)(v + s * one->v_slot + d) * weight[s];
            other += *(const vec *)(v + (s + 1) * one->v_slot + d) * weight[s + 1];
        }
        if (slots % 2) sum += *(const vec *)(v + (slots - 1) * one->v_slot + d) * weight[slots - 1];
        *(vec *)(out + d) = *(vec *)(out + d) * share + (sum + other);
    }
    *total = *total * share[0] + sum_of(mass);
    *highest = top;
}

/* The queries from `first` on of the heads that share keys, counted head by head: `count` in `vectors` vectors, and
 * `more` that go alone. */
INLINE void few(const int vectors, const Head *one, int first, int count, int more, float *held)
{
    int dim = one->dim, width = vectors * LANES, full = dim / ROWS, rest = dim % ROWS;
    float *turned = held, *out = turned + dim * width, *scores = out + dim * width, *others = scores + BLOCK * width;
    float tops[ALONE], masses[ALONE];
    vec highest[VECTORS], total[VECTORS] = {0};
    for (int n = 0; n < width; n++) { /* behind the last query, it once more: what it says goes nowhere */
        const float *query = query_of(one, first + least(n, count - 1));
        for (int d = 0; d < dim; d++) turned[d * width + n] = query[d];
    }
    memset(out, 0, sizeof(float) * dim * width);
    memset(others, 0, sizeof(float) * dim * more);
    for (int e = 0; e < more; e++) {
        tops[e] = LOWEST;
        masses[e] = 0;
    }
    UNROLL for (int j = 0; j < vectors; j++) highest[j] = every(LOWEST);
    for (int slot = 0; slot < one->slots; slot += BLOCK) {
        int slots = least(BLOCK, one->slots - slot), after = least(BLOCK, one->slots - slot - slots);
        const float *k = one->k + slot * one->k_slot, *v = one->v + slot * one->v_slot;
        for (int s = 0; s < slots; s += ROWS) {
            int rows = least(ROWS, slots - s);
            fetch(k + (slots + s) * one->k_slot, one->k_slot, least(ROWS, after - s), dim);
            fetch(v + (slots + s) * one->v_slot, one->v_slot, least(ROWS, after - s), dim);
            if (vectors)
                for (int d = 0; d < dim; d += PART)
                    KEYS[rows - 1][vectors - 1](k + s * one->k_slot + d, one->k_slot, 1, turned + d * width,
                                                scores + s * width, least(PART, dim - d), d > 0);
        }
        int from = one->from - slot, seen = from < 0 ? 0 : least(from, slots), past = from < 0 ? -from : 0;
        for (int e = 0; e < more; e++)
            alone(one, query_of(one, first + count + e), k, v, slots, mask_of(one, first + count + e) + past, seen,
                  tops + e, masses + e, others + e * dim);
        if (!vectors) continue;
        for (int n = 0; n < width && seen < slots; n++) {
            const float *mask = mask_of(one, first + least(n, count - 1)) + past;
            for (int s = seen; s < slots; s++) scores[s * width + n] += mask[s - seen];
        }
        weigh(vectors, scores, slots, one->scale, highest, total, out, dim);
        for (int b = 0; b < full + (rest > 0); b++)
            VALUES[(b < full ? ROWS : rest) - 1][vectors - 1](v + b * ROWS, 1, one->v_slot, scores,
                                                              out + b * ROWS * width, slots, 1);
    }
    UNROLL for (int j = 0; j < vectors; j++) total[j] = 1.0f / total[j];
    for (int n = 0; n < count; n++) {
        float *to = out_of(one, first + n), share = ((const float *)total)[n];
        for (int d = 0; d < dim; d++) to[d] = out[d * width + n] * share;
    }
    for (int e = 0; e < more; e++) {
        float *to = out_of(one, first + count + e);
        for (int d = 0; d < dim; d++) to[d] = others[e * dim + d] / masses[e];
    }
}

#define FEW(vectors)                                                                                               \
    static void few_##vectors(const Head *one, int first, int count, int more, float *held)                        \
    {                                                                                                              \
        few(vectors, one, first, count, more, held);                                                               \
    }
FEW(0) FEW(1) FEW(2) FEW(3)

/* The `count` queries of the heads that share keys. */
static void many(const Head *one, int count, float *held)
{
    static void (*const FEW_OF[])(const Head *, int, int, int, float *) = {few_0, few_1, few_2, few_3};
    int most = VECTORS * LANES;
    for (int first = 0; first < count;) {
        int left = count - first, some = least(most, left), over = one->dim % LANES ? 0 : left - some / LANES * LANES;
        int more = over <= ALONE ? over : 0; /* a vector of its own would take longer */
        if (more) some = some / LANES * LANES;
        FEW_OF[(some + LANES - 1) / LANES](one, first, some, more, held);
        first += some + more;
    }
}

/* q [batch, queries, heads, dim], k and v [batch, slots, kv_heads, dim], out as q, mask [batch, queries, last];
 * `steps` are those of the first three dimensions of each in turn, and of the first two of the mask; the dimension
 * after them lies together. A row reads its first `lengths` [batch] slots, or all where that is NULL; the mask is of the
 * `last` of these (0 without one). Returns 0, or 1 where there is no memory. */
int pardec_attend(const float *q, const float *k, const float *v, float *out, const float *mask,
                  const ptrdiff_t *steps, const int64_t *lengths, int batch, int queries, int heads, int kv_heads,
                  int slots, int last, int dim, int threads)
{
    const ptrdiff_t *q_steps = steps, *k_steps = steps + 3, *v_steps = steps + 6, *out_steps = steps + 9;
    int shared = heads / kv_heads, count = shared * queries, failed = 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int unit = 0; unit < batch * kv_heads; unit++) {
        int row = unit / kv_heads, head = unit % kv_heads, read = lengths ? (int)lengths[row] : slots;
        Head one = {
            q + row * q_steps[0] + head * shared * q_steps[2], k + row * k_steps[0] + head * k_steps[2],
            v + row * v_steps[0] + head * v_steps[2], out + row * out_steps[0] + head * shared * out_steps[2],
            q_steps[1], q_steps[2], k_steps[1], v_steps[1], out_steps[1], out_steps[2],
            mask ? mask + row * steps[12] : NULL, steps[13],
            queries, dim, read, read - last, 1.44269504f / sqrtf((float)dim),
        };
        float *held = malloc(sizeof(float) * (VECTORS * LANES * (2 * dim + BLOCK) + ALONE * dim));
        if (held) many(&one, count, held);
        else failed = 1;
        free(held);
    }
    return failed;
}
