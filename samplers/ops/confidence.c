/* The highest of each row of logits, and its share of their exponentials' sum, while the row is in a cache. */

#include <math.h>
#include <stdint.h>

#include "../../models/kernels/cpu/vectors.h"

#define PART 1024               /* logits whose exponentials are summed for themselves: a whole number of vectors */

/* ids[r]: the first place of the highest x of logits[r, width]; probability[r]: 1 / sum exp(logits[r] - x). */
int pardec_greedy(const float *logits, int64_t *ids, float *probability, int rows, int width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int r = 0; r < rows; r++) {
        const float *x = logits + (ptrdiff_t)r * width;
        vec highest = every(-INFINITY), other = highest, mass = {0};
        float top = -INFINITY, sum = 0;
        int n = 0, at = 0, whole = 1;
        for (; n + 2 * LANES <= width; n += 2 * LANES) {
            highest = larger(highest, *(const vec *)(x + n));
            other = larger(other, *(const vec *)(x + n + LANES));
        }
        if (n) top = _mm512_reduce_max_ps((__m512)larger(highest, other));
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
        for (n = 0; n + LANES <= width;) { /* part by part: what is small would vanish in a sum that has grown */
            vec part = {0};
            for (int end = n + least(PART, width - n); n + LANES <= end; n += LANES)
                part += exponential(*(const vec *)(x + n) - top);
            mass += part;
        }
        for (; n < width; n++) sum += expf(x[n] - top);
        float total = sum + sum_of(mass);
        ids[r] = at < width ? at : 0;
        probability[r] = 1.0f / total;
    }
    return 0;
}
