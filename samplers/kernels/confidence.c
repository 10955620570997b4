/* The highest of each row of logits, and its share of their exponentials' sum, while the row is in a cache. */

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define LANES 16                /* numbers of a vector */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* 2^x for x <= 0, by the series around the nearest whole number. */
static inline vec power(vec x)
{
    x = (vec)_mm512_max_ps(_mm512_set1_ps(-126.0f), (__m512)x); /* in this order what is no number stays it */
    vec shifted = x + 12582912.0f, f = x - (shifted - 12582912.0f);
    vec sum = f * 1.5403530e-4f + 1.3333558e-3f;
    sum = sum * f + 9.6181291e-3f;
    sum = sum * f + 5.5504109e-2f;
    sum = sum * f + 2.4022651e-1f;
    sum = sum * f + 6.9314718e-1f;
    sum = sum * f + 1.0f;
    return (vec)((ints)sum + ((ints)shifted << 23));
}

/* ids[r]: the first place of the highest x of logits[r, width]; probability[r]: 1 / sum exp(logits[r] - x). */
int pardec_greedy(const float *logits, int64_t *ids, float *probability, int rows, int width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int r = 0; r < rows; r++) {
        const float *x = logits + (ptrdiff_t)r * width;
        vec highest = (vec){0} - INFINITY, other = highest, mass = {0};
        float top = -INFINITY, sum = 0;
        int n = 0, at = 0, whole = 1;
        for (; n + 2 * LANES <= width; n += 2 * LANES) {
            highest = (vec)_mm512_max_ps((__m512)highest, *(const __m512_u *)(x + n));
            other = (vec)_mm512_max_ps((__m512)other, *(const __m512_u *)(x + n + LANES));
        }
        if (n) top = _mm512_reduce_max_ps(_mm512_max_ps((__m512)highest, (__m512)other));
        for (; n < width; n++) top = x[n] > top ? x[n] : top;
        __m512 all = _mm512_set1_ps(top);
        for (; at + LANES <= width; at += LANES) {
            __mmask16 same = _mm512_cmp_ps_mask(*(const __m512_u *)(x + at), all, _CMP_EQ_OQ);
            if (same) {
                at += __builtin_ctz(same);
                whole = 0;
                break;
            }
        }
        while (whole && at < width && x[at] != top) at++;
        for (n = 0; n + LANES <= width; n += LANES)
            mass += power((*(const vec *)(x + n) - top) * 1.44269504f);
        for (; n < width; n++) sum += expf(x[n] - top);
        float total = sum + _mm512_reduce_add_ps((__m512)mass);
        ids[r] = at < width ? at : 0;
        probability[r] = 1.0f / total;
    }
    return 0;
}
