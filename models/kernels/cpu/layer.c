/* The operations of a layer between its matmuls, each in one pass: norm, rotary embedding, gate.
 *
 * `type` is the type in memory, float32 or bfloat16; the arithmetic is in float32, and results are rounded when they
 * are stored.
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

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, for contiguous rows of `width` numbers. */
int pardec_norm(const void *x, const void *weight, void *out, int type, int rows, int width, float eps)
{
    if (type == FLOAT32) norm(FLOAT32, x, weight, out, rows, width, eps);
    else norm(BFLOAT16, x, weight, out, rows, width, eps);
    return 0;
}

INLINE vec gated(const int type, vec gate, vec up)
{
    gate = larger(spread(-88.0f), gate); /* below, the gate is nearly 0 in float32 */
    return rounded(type, gate / (exponential(-gate) + 1.0f)) * up; /* rounded in between, like two operations */
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

/* Rotates the first `turned` numbers of x, halves a and b: (a cos - b sin, b cos + a sin), where `sine` includes the
 * sign; copies the others. */
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

/* fused [batch, queries, heads + 2 kv, dim] with stride `step` between positions: rotates queries into q and keys into
 * k, and copies values to v unless that is NULL. q is contiguous; `steps` are the strides of row, position and head of
 * k, then of v. Cosines and sines [queries, turned] are float32, with stride `apart` between batch rows. */
int pardec_turn(int type, ARGUMENTS)
{
    if (type == FLOAT32)
        turn_all(FLOAT32, fused, step, cosine, sine, apart, q, k, v, steps, batch, queries, heads, kv, dim, turned);
    else turn_all(BFLOAT16, fused, step, cosine, sine, apart, q, k, v, steps, batch, queries, heads, kv, dim, turned);
    return 0;
}
