/* Products of keys and values with vectors of queries, in tiles whose sums fit into the registers.
 *
 * If all numbers are bfloat16 and the processor multiplies pairs of them, scores are computed over pairs of dimensions,
 * and the sums of values over pairs of slots.
 */

#include "vectors.h"

#define VECTORS 3               /* most vectors of queries in a tile */
#define ROWS 8                  /* most slots, or dimensions, in a tile */
#define PART 8                  /* dimensions, or pairs of them, per partial sum */

#if LANES == 16 && defined(__AVX512BF16__)
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

enum { SINGLE, PAIRS };         /* contents of 32 bits: a float32, or two bfloat16 */

/* Slots per tile of scores: the registers hold their sums, and the sums of the current part. */
#define SLOTS(vectors) ((vectors) == 1 ? 8 : (vectors) == 2 ? 6 : 4)

typedef float loose __attribute__((aligned(1), may_alias)); /* at any address */

/* Dimensions whose values are added up at once: with 16 registers, as many as SLOTS has. */
#if LANES == 8
#define DIMENSIONS(vectors) SLOTS(vectors)
#else
#define DIMENSIONS(vectors) ROWS
#endif

#define SCORES const float *k, ptrdiff_t step, const float *q, float *out, int dim
#define VALUES const float *v, ptrdiff_t step, const float *weights, const vec *share, float *out, int slots

/* sum + a * b, of numbers or of pairs. */
INLINE vec with_products(const int kind, vec sum, vec a, vec b)
{
#if HAS_PAIRS
    if (kind == PAIRS) return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    return fused_add(a, b, sum);
}

/* The same for a single number or pair b. */
INLINE vec with_product(const int kind, vec sum, vec a, const float *b)
{
    return with_products(kind, sum, a, spread(*(const loose *)b));
}

/* sum[i][n] += x[i * step] * y[n], n = `vectors` vectors. */
INLINE void add_products(const int kind, const int rows, const int vectors, vec sum[ROWS][VECTORS], const float *x,
                         ptrdiff_t step, const float *y)
{
    vec column[VECTORS];
    UNROLL for (int j = 0; j < vectors; j++)
        column[j] = *(const vec *)(y + j * LANES);
    UNROLL for (int j = 0; j < vectors; j++)
        KEPT(column[j]);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            sum[i][j] = with_product(kind, sum[i][j], column[j], x + i * step);
}

/* out[rows, n] = k[rows, dim] @ q[dim, n], n = `vectors` vectors, by sums over PART dimensions. */
INLINE void scores_of(const int kind, const int rows, const int vectors, SCORES)
{
    if (kind == PAIRS && !HAS_PAIRS) return; /* nothing to compile */
    vec whole[ROWS][VECTORS] = {0};
    for (; dim > 0; dim -= PART) {
        vec sum[ROWS][VECTORS] = {0};
        for (int d = 0, end = least(PART, dim); d < end; d++, k++, q += vectors * LANES)
            add_products(kind, rows, vectors, sum, k, step, q);
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < vectors; j++)
                whole[i][j] += sum[i][j];
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++)
            *(vec *)(out + (i * vectors + j) * LANES) = whole[i][j];
}

/* out[rows, n] = out * share[n] + v[slots, rows].T @ weights[slots, n]: `rows` are dimensions here, and `slots` may be
 * pairs. */
INLINE void values_of(const int kind, const int rows, const int vectors, VALUES)
{
    if (kind == PAIRS && !HAS_PAIRS) return;
    vec sum[ROWS][VECTORS] = {0};
    for (int s = 0; s < slots; s++, v += step, weights += vectors * LANES)
        add_products(kind, rows, vectors, sum, v, 1, weights);
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < vectors; j++) {
            vec *to = (vec *)(out + (i * vectors + j) * LANES);
            *to = fused_add(*to, share[j], sum[i][j]);
        }
}

#define SCORES_OF(rows, vectors)                                                                                   \
    static void scores_##rows##_##vectors(SCORES) { scores_of(SINGLE, rows, vectors, k, step, q, out, dim); }      \
    static void pairs_##rows##_##vectors(SCORES) { scores_of(PAIRS, rows, vectors, k, step, q, out, dim); }
#define VALUES_OF(rows, vectors)                                                                                   \
    static void values_##rows##_##vectors(VALUES)                                                                  \
    {                                                                                                              \
        values_of(SINGLE, rows, vectors, v, step, weights, share, out, slots);                                     \
    }                                                                                                              \
    static void pair_values_##rows##_##vectors(VALUES)                                                             \
    {                                                                                                              \
        values_of(PAIRS, rows, vectors, v, step, weights, share, out, slots);                                      \
    }
#define TO_4(each, vectors) each(1, vectors) each(2, vectors) each(3, vectors) each(4, vectors)
#define TO_6(each, vectors) TO_4(each, vectors) each(5, vectors) each(6, vectors)
#define TO_8(each, vectors) TO_6(each, vectors) each(7, vectors) each(8, vectors)

TO_8(SCORES_OF, 1) TO_6(SCORES_OF, 2) TO_4(SCORES_OF, 3)
TO_8(VALUES_OF, 1) TO_8(VALUES_OF, 2) TO_8(VALUES_OF, 3)

#define SCORES_NAME(rows, vectors) scores_##rows##_##vectors,
#define PAIRS_NAME(rows, vectors) pairs_##rows##_##vectors,
#define VALUES_NAME(rows, vectors) values_##rows##_##vectors,
#define PAIR_VALUES_NAME(rows, vectors) pair_values_##rows##_##vectors,

static void (*const SCORES_BY[2][VECTORS][ROWS])(SCORES) = {
    {{TO_8(SCORES_NAME, 1)}, {TO_6(SCORES_NAME, 2)}, {TO_4(SCORES_NAME, 3)}},
    {{TO_8(PAIRS_NAME, 1)}, {TO_6(PAIRS_NAME, 2)}, {TO_4(PAIRS_NAME, 3)}},
};
static void (*const VALUES_BY[2][VECTORS][ROWS])(VALUES) = {
    {{TO_8(VALUES_NAME, 1)}, {TO_8(VALUES_NAME, 2)}, {TO_8(VALUES_NAME, 3)}},
    {{TO_8(PAIR_VALUES_NAME, 1)}, {TO_8(PAIR_VALUES_NAME, 2)}, {TO_8(PAIR_VALUES_NAME, 3)}},
};
