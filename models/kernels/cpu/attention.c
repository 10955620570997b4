/* Attention of queries over many slots. Queries see all slots except some of the last ones.
 *
 *     out[q] = sum over s of softmax_s(q . k[s] / sqrt(D) + mask[q, s]) v[s]
 *
 * The mask is 0 or -infinity and covers the slots from `from` on, such as the nodes of a draft; each query sees at
 * least one slot. `type` is the type in memory, float32 or bfloat16; the arithmetic is in float32, and results are
 * rounded when they are stored. If the processor multiplies pairs of bfloat16, weights are rounded too, as PyTorch
 * rounds them, and the values of two slots are added in one instruction.
 *
 * A vector holds LANES queries: one number of a key is multiplied with all of them. Scores are then stored slot by slot,
 * and maxima and exponentials need no operation across a vector. The few remaining queries are computed separately: a
 * vector holds their scores for LANES slots, and then their values for LANES dimensions. A score is the sum of partial
 * sums over PART dimensions each, and is scaled after the highest score was subtracted: the rounding error of a sum
 * grows with the sum, and the exponential turns it into a relative error of the weight. Slots are processed in blocks of
 * BLOCK, so that data that is read repeatedly stays in a cache. Each block's sums are computed separately and then added
 * to the sums so far, which are rescaled when a higher score occurs. During a block, the next block's keys and values
 * are prefetched.
 *
 * A query gives the same bits alone and beside others, and whichever slots hide between those that it sees: all sums are
 * made in one order, which counts only slots that are seen. Decoding that verifies drafts then gives the same tokens as
 * decoding without them, even where a later step rounds to fewer bits.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention_tiles.h"

#define BLOCK 48                /* slots: a multiple of what SLOTS and vectors take at once */
#if LANES == 8                  /* registers hold half as many sums */
#define ALONE 3                 /* queries without a vector of their own that go over a block together */
#define MOST_ALONE 4            /* of these, in all: a vector that holds more of them is faster */
#else
#define ALONE 4
#define MOST_ALONE 8
#endif
#define TOGETHER 8              /* heads of keys whose blocks are read side by side, as they lie in memory */
#define WIDE 8                  /* vectors of values that are summed at once for a query, and for each of several */
#define WIDE_OF(count) ((count) == 1 ? 8 : 4)
#define LOWEST -1e30f
#define CHUNK 16                /* queries of a causal call computed at once, so that few of the slots read are hidden */
#define LINE 64                 /* bytes of a cache line */

/* Pairs (a, b) of two vectors, rounded to bfloat16. */
INLINE vec paired(vec a, vec b)
{
#if HAS_PAIRS
    const short BETWEEN[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    return (vec)_mm512_permutexvar_epi16(_mm512_loadu_si512(BETWEEN), both);
#else
    return a; /* not reached: see HAS_PAIRS */
#endif
}

/* The first and the second numbers of pairs. */
INLINE vec first_of(vec pairs) { return (vec)((ints)pairs << 16); }
INLINE vec second_of(vec pairs) { return (vec)((ints)pairs & (int)0xffff0000); }

/* Turns the scores of `slots` slots into weights, of pairs of slots for PAIRS. Earlier sums have to be multiplied by
 * `share`. The weights are summed as rounded, so that they add up to 1. */
INLINE void weigh(const int kind, const int vectors, float *scores, int slots, float scale, vec *highest, vec *total,
                  vec *share)
{
    vec tops[VECTORS];
    UNROLL for (int j = 0; j < vectors; j++) tops[j] = highest[j];
    for (int s = 0; s < slots; s++)
        UNROLL for (int j = 0; j < vectors; j++) tops[j] = larger(tops[j], *(vec *)(scores + (s * vectors + j) * LANES));
    UNROLL for (int j = 0; j < vectors; j++) {
        vec top = tops[j], mass[LANES] = {0}; /* of slots s with the same s % LANES, as a vector of slots adds them */
        float *own = scores + j * LANES;
        share[j] = power((highest[j] - top) * scale);
        for (int from = 0; from < slots; from += LANES)
            for (int i = 0; i < LANES && from + i < slots; i += kind == PAIRS ? 2 : 1) {
                int s = from + i;
                vec weight = power((*(vec *)(own + s * vectors * LANES) - top) * scale);
                if (kind == PAIRS) {
                    vec next = {0};
                    if (s + 1 < slots) next = power((*(vec *)(own + (s + 1) * vectors * LANES) - top) * scale);
                    weight = paired(weight, next);
                    *(vec *)(own + s / 2 * vectors * LANES) = weight;
                    mass[i] += first_of(weight);
                    mass[i + 1] += second_of(weight);
                } else {
                    *(vec *)(own + s * vectors * LANES) = weight;
                    mass[i] += weight;
                }
            }
        UNROLL for (int half = LANES / 2; half; half /= 2)
            UNROLL for (int i = 0; i < half; i++) mass[i] += mass[i + half];
        total[j] = fused_add(total[j], share[j], mass[0]);
        highest[j] = top;
    }
}

typedef struct {
    const void *q, *k, *v;
    void *out;
    ptrdiff_t q_query, q_head, k_slot, v_slot, out_query, out_head;
    const float *mask;
    ptrdiff_t mask_query;
    float *sums;                /* of query 0 of the first head, a query's heads contiguous; or NULL */
    ptrdiff_t sums_query;
    int type, queries, dim, slots, from;
    float scale;
    const int *listed;          /* NULL, or the slots that are read after the first `straight`, which are read in order */
    int straight;
} Head;

/* Query `n` of the heads that share keys, counted head by head. */
INLINE const void *query_of(const Head *one, int n)
{
    return past(one->type, one->q, n / one->queries * one->q_head + n % one->queries * one->q_query);
}

INLINE void *out_of(const Head *one, int n)
{
    return past(one->type, one->out, n / one->queries * one->out_head + n % one->queries * one->out_query);
}

/* Stores the logarithm of query n's sum of exponentials; `total` is the sum after `highest` was subtracted. */
INLINE void put_sum(const Head *one, int n, float highest, float total)
{
    if (!one->sums) return;
    one->sums[n / one->queries + n % one->queries * one->sums_query] = highest * one->scale * 0.69314718f + logf(total);
}

/* The mask of query n over the slots from `from` on. */
INLINE const float *mask_of(const Head *one, int n) { return one->mask + n % one->queries * one->mask_query; }

static void widen(int type, const void *row, int dim, float *to)
{
    for (int d = 0; d < dim; d += LANES) {
        vec x = type == FLOAT32 ? load(FLOAT32, row, d, dim - d) : load(BFLOAT16, row, d, dim - d);
        store(FLOAT32, to, d, dim - d, x);
    }
}

static void put(int type, const float *row, int dim, void *to)
{
    for (int d = 0; d < dim; d += LANES) {
        vec x = load(FLOAT32, row, d, dim - d);
        if (type == FLOAT32) store(FLOAT32, to, d, dim - d, x);
        else store(BFLOAT16, to, d, dim - d, x);
    }
}

/* A block of slots of a head; the next block follows it in memory. */
typedef struct {
    const float *k, *v;
    ptrdiff_t k_step, v_step;
    int slots, seen;            /* the mask covers the slots after the first `seen` */
    int steps;                  /* slots, or pairs of slots, for the sums of values */
    const void *next_k, *next_v;
    int after;                  /* slots of the next block */
} Block;

/* Prefetches the next block's keys or values of slot s, if there is one. */
INLINE void fetch_slot(const Head *one, const Block *block, const void *next, ptrdiff_t step, int s)
{
    const char *row = past(one->type, next, s * step);
    for (int b = 0, bytes = one->dim * bytes_of(one->type); s < block->after && b < bytes; b += LINE)
        __builtin_prefetch(row + b, 0, 2);
}

/* Part `n` of `parts` of the next keys or values: all at once would delay other reads. */
INLINE void fetch(const Head *one, const Block *block, const void *next, ptrdiff_t step, int n, int parts)
{
    for (int s = block->after * n / parts; s < block->after * (n + 1) / parts; s++)
        fetch_slot(one, block, next, step, s);
}

/* Keys or values of a block as float32, with row stride `step`: in place, or converted into `room`. */
INLINE const float *block_of(int type, const void *x, ptrdiff_t *step, int slots, int dim, float *room)
{
    if (type == FLOAT32) return x;
    for (int s = 0; s < slots; s++) widen(type, past(type, x, s * *step), dim, room + s * dim);
    *step = dim;
    return room;
}

/* Values of two slots each, interleaved as pairs [slots / 2, dim]; after the last slot they are 0. */
INLINE void pair_slots(const void *x, ptrdiff_t step, int slots, int dim, float *room)
{
#if HAS_PAIRS
    for (int s = 0; s < slots; s += 2, room += dim) {
        const void *row = past(BFLOAT16, x, s * step), *next = past(BFLOAT16, row, step);
        for (int d = 0; d < dim; d += LANES) {
            int left = least(dim - d, LANES);
            __mmask16 some = (__mmask16)((1u << left) - 1), other = s + 1 < slots ? some : 0;
            __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, past(BFLOAT16, row, d)));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(other, past(BFLOAT16, next, d)));
            _mm512_mask_storeu_epi32(room + d, some, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
    }
#endif
}

/* Copies keys or values of the slots from number `slot` on, in the order in which they are read. */
INLINE const void *gathered(const Head *one, const void *x, ptrdiff_t step, int slot, int slots, float *rows)
{
    for (int s = 0; s < slots; s++) {
        int from = slot + s < one->straight ? slot + s : one->listed[slot + s - one->straight];
        memcpy(past(one->type, rows, (ptrdiff_t)s * one->dim), past(one->type, x, from * step),
               bytes_of(one->type) * one->dim);
    }
    return rows;
}

#define LONE                                                                                                       \
    const Head *one, const Block *block, const float *queries, const float *const *masks, vec *tops, vec *masses,  \
        float *out

/* Weighted sums of values for `count` queries, over `width` vectors of dimensions from the d-th on. */
INLINE void lone_values(const int kind, const int count, const int width, const Head *one, const Block *block, int d,
                        const float *weights, const vec *share, float *out)
{
    int dim = one->dim, each = kind == PAIRS ? 2 : 1;
    ptrdiff_t step = block->v_step;
    const float *v = block->v + d;
    vec sum[ALONE][WIDE] = {0};
    out += d;
    for (int s = 0; s < block->steps; s++) {
        for (int i = s * each; d == 0 && i < (s + 1) * each; i++)
            fetch_slot(one, block, block->next_v, one->v_slot, i);
        UNROLL for (int e = 0; e < count; e++) {
            const float *weight = weights + e * BLOCK + s;
            UNROLL for (int j = 0; j < width; j++)
                sum[e][j] = with_product(kind, sum[e][j], *(const vec *)(v + s * step + j * LANES), weight);
        }
    }
    UNROLL for (int e = 0; e < count; e++)
        UNROLL for (int j = 0; j < width; j++) {
            vec *to = (vec *)(out + e * dim + j * LANES);
            *to = fused_add(*to, share[e], sum[e][j]);
        }
}

/* Attention of `count` queries, [dim] numbers or pairs, over a block; `masks` cover the slots after those that all
 * queries see. */
INLINE void lone(const int kind, const int count, LONE)
{
    if (kind == PAIRS && !HAS_PAIRS) return;
    int slots = block->slots, dim = one->dim, length = kind == PAIRS ? dim / 2 : dim;
    int bytes = kind == PAIRS ? 4 : bytes_of(one->type); /* of a number, or a pair, of a key */
    int after = block->after;
    const char *next = block->next_k;
    ptrdiff_t apart = one->k_slot * bytes_of(one->type);
    float scale = one->scale;
    float weights[ALONE * BLOCK];
    vec share[ALONE];
    for (int s = 0; s < slots; s += LANES) {
        vec whole[ALONE] = {0}, part[ALONE] = {0};
        for (int d = 0; d < length; d += LANES) { /* the last vector of pairs may be half full */
            vec keys[LANES];
            UNROLL for (int i = 0; i < LANES; i++) {
                const float *row = block->k + least(s + i, slots - 1) * block->k_step;
                keys[i] = load(FLOAT32, row, d, LANES == 16 ? length - d : LANES);
                if (s + i < after) __builtin_prefetch(next + (s + i) * apart + d * bytes, 0, 2);
            }
            transpose(keys);
            UNROLL for (int i = 0; i < LANES; i++) {
                if (LANES == 16 && d + i >= length) break;
                UNROLL for (int e = 0; e < count; e++) {
                    part[e] = with_product(kind, part[e], keys[i], queries + e * dim + d + i);
                    if ((d + i) % PART < PART - 1 && d + i < length - 1) continue;
                    whole[e] += part[e];
                    part[e] = (vec){0};
                }
            }
        }
        UNROLL for (int e = 0; e < count; e++) *(vec *)(weights + e * BLOCK + s) = whole[e];
    }
    UNROLL for (int e = 0; e < count; e++) {
        float *own = weights + e * BLOCK;
        int end = (slots + LANES - 1) / LANES * LANES;
        for (int s = block->seen; s < slots; s++) own[s] += masks[e][s - block->seen];
        for (int s = slots; s < end; s++) own[s] = LOWEST;
        vec top = spread(LOWEST), mass = {0};
        for (int s = 0; s < end; s += LANES) top = larger(top, *(vec *)(own + s));
        top = larger(tops[e], spread(largest_of(top)));
        share[e] = power((tops[e] - top) * scale);
        for (int s = 0; s < end; s += LANES) {
            *(vec *)(own + s) = power((*(vec *)(own + s) - top) * scale);
            if (slots - s < LANES) *(vec *)(own + s) = load(FLOAT32, own, s, slots - s);
            if (kind == PAIRS) {
                store(BFLOAT16, own, s, LANES, *(vec *)(own + s));
                mass += load(BFLOAT16, own, s, LANES);
            } else mass += *(vec *)(own + s);
        }
        masses[e] = fused_add(masses[e], share[e], spread(sum_of(mass)));
        tops[e] = top;
    }
    int d = 0;
    for (; dim - d >= WIDE_OF(count) * LANES; d += WIDE_OF(count) * LANES)
        lone_values(kind, count, WIDE_OF(count), one, block, d, weights, share, out);
    for (; d < dim; d += LANES)
        lone_values(kind, count, 1, one, block, d, weights, share, out);
}

#define LONE_OF(count)                                                                                             \
    static void lone_##count(LONE) { lone(SINGLE, count, one, block, queries, masks, tops, masses, out); }         \
    static void lone_pairs_##count(LONE) { lone(PAIRS, count, one, block, queries, masks, tops, masses, out); }
LONE_OF(1) LONE_OF(2) LONE_OF(3)
#if ALONE == 3
static void (*const LONE_BY[2][ALONE])(LONE) = {{lone_1, lone_2, lone_3}, {lone_pairs_1, lone_pairs_2, lone_pairs_3}};
#else
LONE_OF(4)
static void (*const LONE_BY[2][ALONE])(LONE) = {
    {lone_1, lone_2, lone_3, lone_4}, {lone_pairs_1, lone_pairs_2, lone_pairs_3, lone_pairs_4}};
#endif

/* Number of float32 values in the buffer of `few`. */
static size_t room_for(int dim)
{
    return (size_t)VECTORS * LANES * (2 * dim + BLOCK) + (2 * TOGETHER * MOST_ALONE + 4 * BLOCK) * dim;
}

/* Attention of the queries from `first` on of the heads that share keys, counted head by head: `count` queries in
 * `vectors` vectors, and `more` remaining ones. Where there are no vectors, of `together` such heads. */
INLINE void few(const int kind, const int vectors, const Head *heads, const int together, int first, int count,
                int more, float *held)
{
    if (kind == PAIRS && !HAS_PAIRS) return;
    const Head *one = heads;
    int type = one->type, dim = one->dim, width = vectors * LANES, apart = MOST_ALONE * dim;
    int each = SLOTS(vectors), dimensions = DIMENSIONS(vectors), length = kind == PAIRS ? dim / 2 : dim; /* numbers or pairs of a key */
    float *turned = held, *out = turned + dim * width, *scores = out + dim * width, *queries = scores + BLOCK * width;
    float *others = queries + together * apart, *keys = others + together * apart, *values = keys + BLOCK * dim;
    float *rows = values + BLOCK * dim;
    vec tops[TOGETHER][MOST_ALONE], masses[TOGETHER][MOST_ALONE];
    const float *masks[MOST_ALONE];
    vec highest[VECTORS], total[VECTORS] = {0}, share[VECTORS];
    for (int n = 0; n < width; n += LANES) { /* the last query fills up the vector; copies are not stored */
        for (int i = 0; i < LANES; i++) {
            const void *query = query_of(one, first + least(n + i, count - 1));
            if (kind == PAIRS) memcpy(keys + i * dim, query, sizeof(float) * length);
            else widen(type, query, dim, keys + i * dim);
        }
        for (int d = 0; d < length; d += LANES) {
            vec x[LANES];
            UNROLL for (int i = 0; i < LANES; i++) x[i] = load(FLOAT32, keys + i * dim, d, length - d);
            transpose(x);
            UNROLL for (int i = 0; i < LANES; i++)
                if (d + i < length) *(vec *)(turned + (d + i) * width + n) = x[i];
        }
    }
    memset(out, 0, sizeof(float) * dim * width);
    memset(others, 0, sizeof(float) * apart * together);
    for (int h = 0; h < together; h++)
        for (int e = 0; e < more; e++) {
            const void *query = query_of(heads + h, first + count + e);
            float *to = queries + h * apart + e * dim;
            if (kind == PAIRS) memcpy(to, query, sizeof(float) * length);
            else widen(type, query, dim, to);
            tops[h][e] = spread(LOWEST), masses[h][e] = (vec){0};
        }
    UNROLL for (int j = 0; j < vectors; j++) highest[j] = spread(LOWEST);
    for (int h = 0; h < together && !vectors; h++) {
        Block none = {.after = least(BLOCK, heads->listed ? heads->straight : heads->slots)}; /* before the first */
        for (int s = 0; s < none.after; s++) {
            fetch_slot(heads + h, &none, heads[h].k, heads[h].k_slot, s);
            fetch_slot(heads + h, &none, heads[h].v, heads[h].v_slot, s);
        }
    }
    for (int n = 0, slot = 0; slot < heads->slots; slot += ++n % together ? 0 : BLOCK) {
        const int h = n % together;
        one = heads + h;
        int slots = least(BLOCK, one->slots - slot), from = one->from - slot, gone = from < 0 ? -from : 0;
        const void *k = past(type, one->k, slot * one->k_slot), *v = past(type, one->v, slot * one->v_slot);
        ptrdiff_t k_step = one->k_slot, v_step = one->v_slot;
        int after = least(BLOCK, (one->listed ? one->straight : one->slots) - slot - slots);
        Block block = {
            .slots = slots, .seen = from < 0 ? 0 : least(from, slots), .next_k = past(type, k, slots * k_step),
            .next_v = past(type, v, slots * v_step), .after = after < 0 ? 0 : after,
        };
        if (one->listed && slot + slots > one->straight) {
            k = gathered(one, one->k, k_step, slot, slots, rows);
            v = gathered(one, one->v, v_step, slot, slots, rows + BLOCK * dim);
            k_step = v_step = dim;
        }
        block.k = k, block.k_step = k_step / 2, block.v = values, block.v_step = dim, block.steps = (slots + 1) / 2;
        if (kind == PAIRS) pair_slots(v, v_step, slots, dim, values);
        else {
            block.k_step = k_step, block.v_step = v_step, block.steps = slots;
            block.k = block_of(type, k, &block.k_step, slots, dim, keys);
            block.v = block_of(type, v, &block.v_step, slots, dim, values);
        }
        for (int e = 0; e < more; e++) masks[e] = mask_of(one, first + count + e) + gone;
        for (int e = 0, some; e < more; e += some) {
            some = least(ALONE, more - e);
            LONE_BY[kind][some - 1](one, &block, queries + h * apart + e * dim, masks + e, tops[h] + e, masses[h] + e,
                                    others + h * apart + e * dim);
        }
        if (!vectors) continue;
        for (int s = 0; s < slots; s += each) {
            fetch(one, &block, block.next_k, one->k_slot, s / each, BLOCK / each);
            int rows = least(each, slots - s);
            SCORES_BY[kind][vectors - 1][rows - 1](block.k + s * block.k_step, block.k_step, turned, scores + s * width,
                                                   length);
        }
        for (int n = 0; n < width && block.seen < slots; n++) {
            const float *mask = mask_of(one, first + least(n, count - 1)) + gone;
            for (int s = block.seen; s < slots; s++) scores[s * width + n] += mask[s - block.seen];
        }
        weigh(kind, vectors, scores, slots, one->scale, highest, total, share);
        for (int d = 0; d < dim; d += dimensions) {
            fetch(one, &block, block.next_v, one->v_slot, d / dimensions, (dim + dimensions - 1) / dimensions);
            VALUES_BY[kind][vectors - 1][least(dimensions, dim - d) - 1](block.v + d, block.v_step, scores, share,
                                                                   out + d * width, block.steps);
        }
    }
    for (int n = 0; n < count; n++)
        put_sum(one, first + n, ((const float *)highest)[n], ((const float *)total)[n]);
    UNROLL for (int j = 0; j < vectors; j++) total[j] = 1.0f / total[j];
    for (int n = 0; n < count; n += LANES)
        for (int d = 0; d < dim; d += LANES) {
            vec x[LANES] = {0};
            UNROLL for (int i = 0; i < LANES; i++)
                if (d + i < dim) x[i] = *(vec *)(out + (d + i) * width + n) * total[n / LANES];
            transpose(x);
            for (int i = 0; i < least(LANES, count - n); i++) {
                void *to = out_of(one, first + n + i);
                if (type == FLOAT32) store(FLOAT32, to, d, dim - d, x[i]);
                else store(BFLOAT16, to, d, dim - d, x[i]);
            }
        }
    for (int h = 0; h < together; h++)
        for (int e = 0; e < more; e++) {
            float part = 1.0f / masses[h][e][0], *own = others + h * apart + e * dim;
            for (int d = 0; d < dim; d++) own[d] *= part;
            put(type, own, dim, out_of(heads + h, first + count + e));
            put_sum(heads + h, first + count + e, tops[h][e][0], masses[h][e][0]);
        }
}

#define FEW_OF(vectors)                                                                                            \
    static void few_##vectors(const Head *heads, int together, int first, int count, int more, float *held)         \
    {                                                                                                              \
        few(SINGLE, vectors, heads, vectors ? 1 : together, first, count, more, held);                             \
    }                                                                                                              \
    static void few_pairs_##vectors(const Head *heads, int together, int first, int count, int more, float *held)   \
    {                                                                                                              \
        few(PAIRS, vectors, heads, vectors ? 1 : together, first, count, more, held);                              \
    }
FEW_OF(0) FEW_OF(1) FEW_OF(2) FEW_OF(3)
static void (*const FEW_BY[2][VECTORS + 1])(const Head *, int, int, int, int, float *) = {
    {few_0, few_1, few_2, few_3}, {few_pairs_0, few_pairs_1, few_pairs_2, few_pairs_3}};

/* Attention of the `count` queries of the heads that share keys; `together` such heads where none has a vector. */
static void many(const Head *one, int together, int count, float *held)
{
    int kind = HAS_PAIRS && one->type == BFLOAT16 && one->dim % 2 == 0 && one->k_slot % 2 == 0 ? PAIRS : SINGLE;
    int most = VECTORS * LANES;
    for (int first = 0; first < count;) {
        int left = count - first, some = least(most, left), over = one->dim % LANES ? 0 : left - some / LANES * LANES;
        int more = over <= MOST_ALONE ? over : 0;
        if (more) some = some / LANES * LANES;
        FEW_BY[kind][(some + LANES - 1) / LANES](one, together, first, some, more, held);
        first += some + more;
    }
}

/* Whether a query sees a slot after one of the last `last` that it does not see. */
static int has_gaps(const Head *one, int last)
{
    for (int i = 0; i < one->queries; i++)
        for (int s = 1; s < last; s++)
            if (mask_of(one, i)[s - 1] < 0 && mask_of(one, i)[s] == 0) return 1;
    return 0;
}

/* Attention of the queries of `shared` heads one by one, each over the slots that it sees; `listed` has room for them. */
static void one_by_one(const Head *one, int shared, int last, int *listed, float *held)
{
    for (int i = 0; i < one->queries; i++) {
        Head own = *one;
        int count = 0;
        for (int s = 0; s < last; s++)
            if (mask_of(one, i)[s] == 0) listed[count++] = one->from + s;
        own.q = past(one->type, one->q, i * one->q_query), own.out = past(one->type, one->out, i * one->out_query);
        own.sums = one->sums ? one->sums + i * one->sums_query : NULL;
        own.queries = 1, own.slots = own.from = one->from + count, own.listed = listed, own.straight = one->from;
        many(&own, 1, shared, held);
    }
}

/* Attention as `pardec_attend` describes it, where queries see all slots but some of the last. */
static int attend(int type, const void *q, const void *k, const void *v, void *out, const float *mask, float *sums,
                  const ptrdiff_t *steps, const int64_t *lengths, int batch, int queries, int heads, int kv_heads,
                  int slots, int last, int dim, int threads)
{
    const ptrdiff_t *q_steps = steps, *k_steps = steps + 3, *v_steps = steps + 6, *out_steps = steps + 9;
    int shared = heads / kv_heads, count = shared * queries, failed = 0;
    int together = threads < 2 && count <= MOST_ALONE && dim % LANES == 0 ? least(TOGETHER, kv_heads) : 1;
    int parts = (kv_heads + together - 1) / together;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int unit = 0; unit < batch * parts; unit++) {
        int row = unit / parts, first = unit % parts * together, some = least(together, kv_heads - first);
        int read = lengths ? (int)lengths[row] : slots;
        int hides = least(last, read);  /* the mask of a row with fewer slots begins before its first */
        Head own[TOGETHER];
        for (int h = 0; h < some; h++)
            own[h] = (Head){
                past(type, q, row * q_steps[0] + (first + h) * shared * q_steps[2]),
                past(type, k, row * k_steps[0] + (first + h) * k_steps[2]),
                past(type, v, row * v_steps[0] + (first + h) * v_steps[2]),
                past(type, out, row * out_steps[0] + (first + h) * shared * out_steps[2]),
                q_steps[1], q_steps[2], k_steps[1], v_steps[1], out_steps[1], out_steps[2],
                mask ? mask + row * steps[12] + last - hides : NULL, steps[13],
                sums ? sums + (ptrdiff_t)row * queries * heads + (first + h) * shared : NULL, heads,
                type, queries, dim, read, read - hides, 1.44269504f / sqrtf((float)dim), NULL, 0,
            };
        float *held = malloc(sizeof(float) * (room_for(dim) + last));
        if (!held) failed = 1;
        else if (!has_gaps(own, hides)) many(own, some, count, held);
        else
            for (int h = 0; h < some; h++) one_by_one(own + h, shared, hides, (int *)(held + room_for(dim)), held);
        free(held);
    }
    return failed;
}

/* q [batch, queries, heads, dim], k and v [batch, slots, kv_heads, dim], out like q, mask [batch, queries, last].
 * `steps` are the strides of the first three dimensions of q, k, v and out, then of the first two of the mask; last
 * dimensions are contiguous. A row reads its first `lengths` [batch] slots, or all if that is NULL; the mask covers the
 * last `last` of them (0 without a mask), and of a row with fewer slots the end of its mask counts. If `causal`, slots
 * are the queries' own, each sees those up to its own, and there is neither a mask nor lengths. `sums` [batch, queries,
 * heads], contiguous, receives the logarithms of the sums of exponentials, unless it is NULL, as it is if `causal`. Mask
 * and sums are float32, everything else is of `type`. Returns 0, or 1 if memory runs out. */
int pardec_attend(int type, const void *q, const void *k, const void *v, void *out, const float *mask, float *sums,
                  const ptrdiff_t *steps, const int64_t *lengths, int batch, int queries, int heads, int kv_heads,
                  int slots, int last, int dim, int causal, int threads)
{
    if (!causal)
        return attend(type, q, k, v, out, mask, sums, steps, lengths, batch, queries, heads, kv_heads, slots, last, dim,
                      threads);
    float hidden[CHUNK * CHUNK];
    ptrdiff_t own[14];
    for (int i = 0; i < CHUNK * CHUNK; i++) hidden[i] = i % CHUNK > i / CHUNK ? -__builtin_inff() : 0;
    memcpy(own, steps, sizeof own);
    own[12] = 0, own[13] = CHUNK;
    for (int start = 0, failed; start < queries; start += CHUNK) {
        int count = least(CHUNK, queries - start);
        failed = attend(type, past(type, q, start * steps[1]), k, v, past(type, out, start * steps[10]), hidden, NULL,
                        own, NULL, batch, count, heads, kv_heads, start + count, count, dim, threads);
        if (failed) return 1;
    }
    return 0;
}
