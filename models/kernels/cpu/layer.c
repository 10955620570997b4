/* What a layer does between its products, each in one pass over float32 numbers: norm, rotation, gate. */

#include <math.h>
#include <string.h>

#include "vectors.h"

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, of rows of `width` numbers that lie together. */
int pardec_norm(const float *x, const float *weight, float *out, int rows, int width, float eps)
{
    for (int r = 0; r < rows; r++, x += width, out += width) {
        vec sum = {0}, other = {0};
        float square = 0;
        int n = 0;
        for (; n + 2 * LANES <= width; n += 2 * LANES) {
            vec a = *(const vec *)(x + n), b = *(const vec *)(x + n + LANES);
            sum += a * a;
            other += b * b;
        }
        for (; n < width; n++) square += x[n] * x[n];
        square += sum_of(sum + other);
        float share = 1.0f / sqrtf(square / (float)width + eps);
        for (n = 0; n + LANES <= width; n += LANES)
            *(vec *)(out + n) = *(const vec *)(x + n) * share * *(const vec *)(weight + n);
        for (; n < width; n++) out[n] = x[n] * share * weight[n];
    }
    return 0;
}

INLINE vec gated(vec gate, vec up)
{
    gate = larger(every(-88.0f), gate); /* below, float32 has next to nothing left of it */
    return gate / (exponential(-gate) + 1.0f) * up;
}

/* out[r, n] = silu(both[r, n]) * both[r, width + n]. */
int pardec_gate(const float *both, float *out, int rows, int width)
{
    for (int r = 0; r < rows; r++, both += 2 * (ptrdiff_t)width, out += width) {
        int n = 0;
        for (; n + LANES <= width; n += LANES)
            *(vec *)(out + n) = gated(*(const vec *)(both + n), *(const vec *)(both + width + n));
        if (n < width) {
            float gate[LANES] = {0}, up[LANES] = {0}, made[LANES];
            memcpy(gate, both + n, sizeof(float) * (width - n));
            memcpy(up, both + width + n, sizeof(float) * (width - n));
            *(vec *)made = gated(*(vec *)gate, *(vec *)up);
            memcpy(out + n, made, sizeof(float) * (width - n));
        }
    }
    return 0;
}

/* The first `turned` numbers of x, halves a and b: (a cos - b sin, b cos + a sin), `sin` with its sign; the rest as is. */
static void turn(const float *x, const float *cosine, const float *sine, float *restrict out, int turned, int dim)
{
    int half = turned / 2;
    for (int n = 0; n < half; n++) out[n] = x[n] * cosine[n] + x[n + half] * sine[n];
    for (int n = half; n < turned; n++) out[n] = x[n] * cosine[n] + x[n - half] * sine[n];
    if (turned < dim) memcpy(out + turned, x + turned, sizeof(float) * (dim - turned));
}

/* fused [batch, queries, heads + 2 kv, dim], whose positions lie `step` apart: queries, turned, to q; keys, turned, to
 * k, and values to v, if that is not NULL. q lies together; `steps` are those of a row, a position and a head of k, and
 * then of v. Rows of cosines and sines [queries, turned] lie `apart` numbers from those of the next batch row. */
int pardec_turn(const float *fused, ptrdiff_t step, const float *cosine, const float *sine, ptrdiff_t apart, float *q,
                float *k, float *v, const ptrdiff_t *steps, int batch, int queries, int heads, int kv, int dim,
                int turned)
{
    for (int b = 0; b < batch; b++)
        for (int i = 0; i < queries; i++, fused += step, q += (ptrdiff_t)heads * dim) {
            const float *c = cosine + b * apart + (ptrdiff_t)i * turned, *s = sine + b * apart + (ptrdiff_t)i * turned;
            const float *own = fused + (ptrdiff_t)heads * dim, *values = own + (ptrdiff_t)kv * dim;
            float *to_k = k + b * steps[0] + i * steps[1], *to_v = v ? v + b * steps[3] + i * steps[4] : NULL;
            for (int h = 0; h < heads; h++)
                turn(fused + (ptrdiff_t)h * dim, c, s, q + (ptrdiff_t)h * dim, turned, dim);
            for (int h = 0; h < kv; h++) {
                turn(own + (ptrdiff_t)h * dim, c, s, to_k + h * steps[2], turned, dim);
                if (to_v) memcpy(to_v + h * steps[5], values + (ptrdiff_t)h * dim, sizeof(float) * dim);
            }
        }
    return 0;
}
