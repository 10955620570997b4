/* The highest logits of each row and their softmax probabilities, computed while the row is in a cache. */

#include <math.h>
#include <stdint.h>

#include "vectors.h"

#define PART 1024               /* logits per partial sum of exponentials: a whole number of vectors */
#define SPREAD (1 << 20)        /* logits, from which on several threads are faster */

/* sum exp(x[n] - top) over the `width` numbers x; NaN if one of them is NaN. */
INLINE float mass_above(const float *x, float top, int width)
{
    vec mass = {0};
    float sum = 0;
    int n = 0;
    while (n + LANES <= width) { /* partial sums: small terms would vanish in one large sum */
        vec part = {0};
        for (int end = n + least(PART, width - n); n + LANES <= end; n += LANES)
            part += exponential(*(const vec *)(x + n) - top);
        mass += part;
    }
    for (; n < width; n++) sum += expf(x[n] - top);
    return sum + sum_of(mass);
}

/* ids[r]: the first index of the highest logit x in logits[r, width]; probability[r]: 1 / sum exp(logits[r] - x). */
int pardec_greedy(const float *logits, int64_t *ids, float *probability, int rows, int width, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && (ptrdiff_t)rows * width >= SPREAD)
    for (int r = 0; r < rows; r++) {
        const float *x = logits + (ptrdiff_t)r * width;
        float top = highest_of(x, width);
        ids[r] = index_of(x, top, width);
        probability[r] = 1.0f / mass_above(x, top, width);
    }
    return 0;
}

/* Inserts x, the n-th number, into the `count` sorted numbers `best` if it is above the last of them; of equal numbers
 * the earlier one comes first. */
INLINE void enter(float x, int n, int count, float *best, int64_t *ids)
{
    int at = count - 1;
    if (!(x > best[at])) return;
    for (; at && x > best[at - 1]; at--) {
        best[at] = best[at - 1];
        ids[at] = ids[at - 1];
    }
    best[at] = x;
    ids[at] = n;
}

/* The indices ids[r, count] of the highest of logits[r, width], highest first, and the logarithms of their softmax
 * probabilities in `shares`, which are NaN if a logit is NaN. */
int pardec_likeliest(const float *logits, int64_t *ids, float *shares, int rows, int width, int count, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && (ptrdiff_t)rows * width >= SPREAD)
    for (int r = 0; r < rows; r++) {
        const float *x = logits + (ptrdiff_t)r * width;
        float *best = shares + (ptrdiff_t)r * count;
        int64_t *places = ids + (ptrdiff_t)r * count;
        for (int i = 0; i < count; i++) { /* the first ones, in order */
            int at = i;
            for (; at && x[i] > best[at - 1]; at--) best[at] = best[at - 1], places[at] = places[at - 1];
            best[at] = x[i], places[at] = i;
        }
        int n = count;
        for (; n + LANES <= width; n += LANES) {
            unsigned above = where_above(*(const vec *)(x + n), spread(best[count - 1]));
            for (; above; above &= above - 1) {
                int at = n + __builtin_ctz(above);
                enter(x[at], at, count, best, places);
            }
        }
        for (; n < width; n++) enter(x[n], n, count, best, places);
        float top = best[0], mass = logf(mass_above(x, top, width));
        for (int i = 0; i < count; i++) best[i] = best[i] - top - mass;
    }
    return 0;
}

/* shares[i]: exp(x[ids[i]]) / sum exp(x), where x is row rows[i] of logits[.., width]. */
int pardec_shares(const float *logits, const int64_t *rows, const int64_t *ids, float *shares, int count, int width)
{
    for (int i = 0; i < count; i++) {
        const float *x = logits + (ptrdiff_t)rows[i] * width;
        float top = highest_of(x, width);
        shares[i] = expf(x[ids[i]] - top) / mass_above(x, top, width);
    }
    return 0;
}
