/* What a layer does between its products, each in one pass: norm, rotation, gate.
 *
 * Numbers are float32 or bfloat16, as `type` says; what is computed is float32, and rounded where it is stored.
 */

#include <math.h>
#include <string.h>

#include "vectors.h"

INLINE void norm(const int type, const void *x, const void *weight, void *out, int rows, int width, float eps)
{
    for (int r = 0; r < rows; r++, x = past(type, x, width), out = past(type, out, width)) {
        vec sum = {0}, other = {0};
        int n = 0;
        for (; n + 2 * LANES <= width; n += 2 * LANES) {
            vec a = load(type, x, n, LANES), b = load(type, x, n + LANES, LANES);
            sum += a * a;
            other += b * b;
        }
        for (; n < width; n += LANES) {
            vec a = load(type, x, n, width - n);
            sum += a * a;
        }
        float share = 1.0f / sqrtf(sum_of(sum + other) / (float)width + eps);
        for (n = 0; n + LANES <= width; n += LANES)
            store(type, out, n, LANES, load(type, x, n, LANES) * share * load(type, weight, n, LANES));
        if (n < width)
            store(type, out, n, width - n, load(type, x, n, width - n) * share * load(type, weight, n, width - n));
    }
}

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, of rows of `width` numbers that lie together. */
int pardec_norm(const void *x, const void *weight, void *out, int type, int rows, int width, float eps)
{
    if (type == FLOAT32) norm(FLOAT32, x, weight, out, rows, width, eps);
    else norm(BFLOAT16, x, weight, out, rows, width, eps);
    return 0;
}

INLINE vec gated(const int type, vec gate, vec up)
{
    gate = larger(every(-88.0f), gate); /* below, float32 has next to nothing left of it */
    return rounded(type, gate / (exponential(-gate) + 1.0f)) * up; /* in between, too, as by two operations */
}

INLINE void gate(const int type, const void *both, void *out, int rows, int width)
{
    for (int r = 0; r < rows; r++, both = past(type, both, 2 * (ptrdiff_t)width), out = past(type, out, width))
        for (int n = 0, left = width; n < width; n += LANES, left -= LANES) {
            vec open = load(type, both, n, left), up = load(type, both, width + n, left);
            store(type, out, n, left, gated(type, open, up));
        }
}

/* out[r, n] = silu(both[r, n]) * both[r, width + n]. */
int pardec_gate(const void *both, void *out, int type, int rows, int width)
{
    if (type == FLOAT32) gate(FLOAT32, both, out, rows, width);
    else gate(BFLOAT16, both, out, rows, width);
    return 0;
}

/* The first `turned` numbers of x, halves a and b: (a cos - b sin, b cos + a sin), `sin` with its sign; the rest as is. */
INLINE void turn(const int type, const void *x, const float *cosine, const float *sine, void *restrict out, int turned,
                 int dim)
{
    int half = turned / 2;
    for (int n = 0, left = half; n < half; n += LANES, left -= LANES) {
        vec a = load(type, x, n, left), b = load(type, x, half + n, left);
        vec of_a = load(FLOAT32, cosine, n, left), of_b = load(FLOAT32, cosine, half + n, left);
        store(type, out, n, left, a * of_a + b * load(FLOAT32, sine, n, left));
        store(type, out, half + n, left, b * of_b + a * load(FLOAT32, sine, half + n, left));
    }
    if (turned < dim) memcpy(past(type, out, turned), past(type, x, turned), bytes_of(type) * (dim - turned));
}

#define ARGUMENTS                                                                                                  \
    const void *fused, ptrdiff_t step, const float *cosine, const float *sine, ptrdiff_t apart, void *q, void *k,  \
        void *v, const ptrdiff_t *steps, int batch, int queries, int heads, int kv, int dim, int turned

INLINE void turn_all(const int type, ARGUMENTS)
{
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < queries; i++) {
            const float *c = cosine + b * apart + (ptrdiff_t)i * turned, *s = sine + b * apart + (ptrdiff_t)i * turned;
            const void *keys = past(type, fused, (ptrdiff_t)heads * dim);
            const void *values = past(type, keys, (ptrdiff_t)kv * dim);
            ptrdiff_t to_k = b * steps[0] + i * steps[1], to_v = b * steps[3] + i * steps[4];
            for (int h = 0; h < heads; h++) {
                ptrdiff_t from = (ptrdiff_t)h * dim;
                turn(type, past(type, fused, from), c, s, past(type, q, from), turned, dim);
            }
            for (int h = 0; h < kv; h++) {
                ptrdiff_t from = (ptrdiff_t)h * dim;
                turn(type, past(type, keys, from), c, s, past(type, k, to_k + h * steps[2]), turned, dim);
                if (v) memcpy(past(type, v, to_v + h * steps[5]), past(type, values, from), bytes_of(type) * dim);
            }
            fused = past(type, fused, step);
            q = past(type, q, (ptrdiff_t)heads * dim);
        }
}

/* fused [batch, queries, heads + 2 kv, dim], whose positions lie `step` apart: queries, turned, to q; keys, turned, to
 * k, and values to v, if that is not NULL. q lies together; `steps` are those of a row, a position and a head of k, and
 * then of v. Rows of cosines and sines [queries, turned], float32, lie `apart` numbers from those of the next batch
 * row. */
int pardec_turn(int type, ARGUMENTS)
{
    if (type == FLOAT32)
        turn_all(FLOAT32, fused, step, cosine, sine, apart, q, k, v, steps, batch, queries, heads, kv, dim, turned);
    else turn_all(BFLOAT16, fused, step, cosine, sine, apart, q, k, v, steps, batch, queries, heads, kv, dim, turned);
    return 0;
}
