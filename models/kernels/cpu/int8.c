/* Matmuls of rows with a weight matrix in 8 bits, for drafting only: rounding errors cost acceptance, not correctness.
 *
 *     out[m, n] = scale[n] * sum over g of s[m, g] * (sum over the k of group g of a[m, k] * w[n, k]) + base[m, n]
 *     s[m, g] = max over the k of g of |x[m, k]| / 127,  a[m, k] = x[m, k] / s[m, g], rounded to a whole number
 *
 * A group is GROUP consecutive k with one scale: states have a few outliers, and only numbers in the same group should
 * get the coarse scale of an outlier. The processor multiplies four pairs of bytes in one instruction, and the bytes
 * of one operand are unsigned: panels therefore store w + 128, and each sum starts at minus the excess. A row's
 * products are added in a fixed order, so that its bits are the same alone and in a batch.
 *
 * A panel holds WIDTH rows n of w, four k at a time: w[n, k] is panels[n / WIDTH][k / 4][n % WIDTH][k % 4] - 128,
 * padded with zeros. It is read once per ROWS rows of x, from beginning to end, and the bytes AHEAD are prefetched.
 */

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

#define WIDTH 32
#define VECTORS (WIDTH / LANES) /* of a panel */
#if LANES == 16
#define ROWS 6                  /* of x at once: two ROWS * VECTORS sums are as many as registers hold beside the rest */
#else
#define ROWS 2                  /* the sums over groups go through memory */
#endif
#define STEP (WIDTH * 4)        /* bytes: of four k */
#define STEPS 16                /* of a group */
#define GROUP (STEPS * 4)
#define AHEAD 4096              /* bytes from the address read to the address prefetched */
#define LINE 64

/* Rows of x in 8 bits, of `apart` bytes and `groups` groups each: numbers, scales, and start values of sums. */
struct rows { int8_t *a; float *s; int *less; ptrdiff_t apart; int groups; };

/* sum + the products of each four bytes of w with those of a. What w has too much, 128, is taken off here where its
 * products are of bytes with a sign, so that OVER is 0, and by the caller where they are not. A sum of two products of
 * bytes fits 16 bits: none is -128. */
#if LANES == 16 && defined(__AVX512VNNI__)
#define OVER 128
INLINE ints four_pairs(ints sum, ints w, int a)
{
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(a));
}
#elif LANES == 8 && defined(__AVXVNNI__)
#define OVER 128
INLINE ints four_pairs(ints sum, ints w, int a)
{
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, _mm256_set1_epi32(a));
}
#elif LANES == 8
#define OVER 0
INLINE ints four_pairs(ints sum, ints w, int a)
{
    __m256i four = _mm256_set1_epi32(a), own = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128));
    __m256i twos = _mm256_maddubs_epi16(_mm256_abs_epi8(four), _mm256_sign_epi8(own, four));
    return sum + (ints)_mm256_madd_epi16(twos, _mm256_set1_epi16(1));
}
#elif LANES == 4 && defined(__ARM_FEATURE_DOTPROD)
#define OVER 0
INLINE ints four_pairs(ints sum, ints w, int a)
{
    int8x16_t own = veorq_s8((int8x16_t)w, vdupq_n_s8(-128));
    return (ints)vdotq_s32((int32x4_t)sum, own, (int8x16_t)vdupq_n_s32(a));
}
#else
#define OVER 0
#define NONE                    /* see pardec_multiplies_int8 */
INLINE ints four_pairs(ints sum, ints w, int a) { return sum; }
#endif

/* `count` rows from row m on, times one panel of `steps` steps. */
INLINE void tile(const int count, const struct rows *x, int m, const char *w, int steps, vec sum[ROWS][VECTORS])
{
    vec whole[ROWS][VECTORS];
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < VECTORS; j++)
            whole[i][j] = (vec){0};
    for (int g = 0; g < x->groups; g++) {
        ints part[ROWS][VECTORS], column[VECTORS];
        UNROLL for (int i = 0; i < count; i++)
            UNROLL for (int j = 0; j < VECTORS; j++)
                part[i][j] = (ints){0} + x->less[(m + i) * x->groups + g];
        for (int step = g * STEPS, end = least(step + STEPS, steps); step < end; step++, w += STEP) {
            UNROLL for (int j = 0; j < VECTORS; j++) {
                column[j] = *(const ints *)(w + j * LANES * 4);
                if (j * LANES * 4 % LINE == 0) __builtin_prefetch(w + AHEAD + j * LANES * 4, 0, 2);
            }
            UNROLL for (int i = 0; i < count; i++) {
                int four;
                memcpy(&four, x->a + (m + i) * x->apart + step * 4, 4);
                UNROLL for (int j = 0; j < VECTORS; j++)
                    part[i][j] = four_pairs(part[i][j], column[j], four);
            }
        }
        UNROLL for (int i = 0; i < count; i++)
            UNROLL for (int j = 0; j < VECTORS; j++)
                whole[i][j] += floats_of(part[i][j]) * x->s[(m + i) * x->groups + g];
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < VECTORS; j++)
            sum[i][j] = whole[i][j];
}

static void tiles(int count, const struct rows *x, int m, const char *w, int steps, vec sum[ROWS][VECTORS])
{
    switch (count) {
    case 1: tile(1, x, m, w, steps, sum); break;
#if ROWS == 2
    default: tile(2, x, m, w, steps, sum);
#else
    case 2: tile(2, x, m, w, steps, sum); break;
    case 3: tile(3, x, m, w, steps, sum); break;
    case 4: tile(4, x, m, w, steps, sum); break;
    case 5: tile(5, x, m, w, steps, sum); break;
    default: tile(6, x, m, w, steps, sum);
#endif
    }
}

/* The first `left` of x, no larger than 127, as bytes. */
INLINE void store_bytes(int8_t *to, int left, ints x)
{
    bytes all = as_bytes(x);
    memcpy(to, &all, left);
}

/* x [length] as the m-th of `rows`; an s is no number where one of its x is none, or without bounds. */
static void round_row(int type, const void *x, int length, const struct rows *rows, int m)
{
    for (int g = 0; g < rows->groups; g++) {
        vec values[GROUP / LANES], most = {0}, none = {0};
        ints added = {0};
        int first = g * GROUP;
        for (int k = first, j = 0; k < least(first + GROUP, length); k += LANES, j++) {
            values[j] = load(type, x, k, length - k);
            most = larger(larger(values[j], -values[j]), most);
            none += values[j] * 0.0f;
        }
        float s = largest_of(most) / 127;
        vec by = spread(s > 0 ? 1 / s : 0);
        for (int k = first, j = 0; k < least(first + GROUP, length); k += LANES, j++) {
            ints whole = whole_of(values[j] * by);
            store_bytes(rows->a + m * rows->apart + k, least(length - k, LANES), whole);
            added += whole;
        }
        rows->s[m * rows->groups + g] = s + sum_of(none);
        rows->less[m * rows->groups + g] = -OVER * whole_sum_of(added);
    }
}

/* Whether the processor for which this was compiled has such instructions. */
int pardec_multiplies_int8(void)
{
#ifdef NONE
    return 0;
#else
    return 1;
#endif
}

/* x [count, length] with row stride `step`, times panels of `columns` rows, plus `base` (NULL: zeros; row stride
 * `base_step`, 0 if all rows are the same) -> out [count, columns] with row stride `out_step`; x and base are of
 * `type`, out of `out_type`. Returns 0, or 1 if memory runs out. */
int pardec_int8(int type, const void *x, ptrdiff_t step, const char *w, const float *scale, const void *base,
                ptrdiff_t base_step, int out_type, void *out, ptrdiff_t out_step, int count, int columns, int length,
                int threads)
{
    int steps = (length + 3) / 4, panels = (columns + WIDTH - 1) / WIDTH, groups = (length + GROUP - 1) / GROUP;
    ptrdiff_t apart = (ptrdiff_t)steps * 4, numbers = (ptrdiff_t)count * groups;
    struct rows rows = {calloc(count * apart + 1, 1), malloc(4 * numbers + 1), malloc(4 * numbers + 1), apart, groups};
    int failed = !rows.a || !rows.s || !rows.less;
    for (int m = 0; m < count && !failed; m++)
        round_row(type, past(type, x, m * step), length, &rows, m);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int p = 0; p < (failed ? 0 : panels); p++)
        for (int m = 0; m < count; m += ROWS) {
            vec sum[ROWS][VECTORS];
            int together = least(ROWS, count - m);
            tiles(together, &rows, m, w + (ptrdiff_t)p * steps * STEP, steps, sum);
            for (int i = 0; i < together; i++)
                for (int j = 0, n = p * WIDTH; j < VECTORS && n < columns; j++, n += LANES) {
                    vec value = sum[i][j] * *(const vec *)(scale + n);
                    if (base) value += load(type, past(type, base, (m + i) * base_step), n, columns - n);
                    store(out_type, past(out_type, out, (m + i) * out_step), n, columns - n, value);
                }
        }
    free(rows.a), free(rows.s), free(rows.less);
    return failed;
}
