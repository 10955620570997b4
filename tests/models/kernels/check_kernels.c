/* Kernels in C against sums in double precision: linked with them for a processor that this machine has not, and run
 * by an emulator. Prints what is further off than rounding explains, and returns how many of that there is. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int pardec_product(const float *, ptrdiff_t, const char *, ptrdiff_t, int, const float *, ptrdiff_t, float *, int, int, int,
                   int);
int pardec_multiplies_int8(void);
int pardec_int8(int, const void *, ptrdiff_t, const char *, const float *, const void *, ptrdiff_t, int, void *,
                ptrdiff_t, int, int, int, int);
int pardec_norm(const void *, const void *, void *, int, int, int, float);
int pardec_gate(const void *, void *, int, int, int);
int pardec_attend(int, const void *, const void *, const void *, void *, const float *, float *, const ptrdiff_t *,
                  const int64_t *, int, int, int, int, int, int, int, int, int);
int pardec_greedy(const float *, int64_t *, float *, int, int, int);
int pardec_likeliest(const float *, int64_t *, float *, int, int, int, int);

#define MOST 40000
static int wrong;
static float a[MOST], b[MOST], c[MOST], out[MOST];
static uint16_t a16[MOST], b16[MOST], c16[MOST], out16[MOST];

static float drawn(void) { return (float)rand() / (float)RAND_MAX * 4 - 2; }
static float wide(uint16_t x) { uint32_t bits = (uint32_t)x << 16; float y; memcpy(&y, &bits, 4); return y; }
static uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Numbers that bfloat16 has, too, in both types. */
static void draw(float *x, uint16_t *x16)
{
    for (int i = 0; i < MOST; i++) x[i] = wide(x16[i] = narrow(drawn()));
}

static void check(const char *name, int type, int at, double found, double expected, double size)
{
    double allowed = (type ? 0x1p-7 : 3e-6) * (size + fabs(expected)) + 1e-6;
    if (fabs(found - expected) <= allowed) return;
    if (wrong++ < 20) printf("%s, type %d, number %d: %g instead of %g\n", name, type, at, found, expected);
}

static double found_at(int type, int i) { return type ? wide(out16[i]) : out[i]; }
static void *of(int type, float *x, uint16_t *x16) { return type ? (void *)x16 : x; }

static void norms_and_gates(int type, int width)
{
    int rows = 3;
    pardec_norm(of(type, a, a16), of(type, b, b16), of(type, out, out16), type, rows, width, 1e-5f);
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int n = 0; n < width; n++) sum += (double)a[r * width + n] * a[r * width + n];
        for (int n = 0; n < width; n++)
            check("norm", type, n, found_at(type, r * width + n), a[r * width + n] / sqrt(sum / width + 1e-5) * b[n], 0);
    }
    pardec_gate(of(type, a, a16), of(type, out, out16), type, rows, width);
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < width; n++) {
            double gate = a[r * 2 * width + n], up = a[(r * 2 + 1) * width + n];
            check("gate", type, n, found_at(type, r * width + n), gate / (1 + exp(-gate)) * up, fabs(gate * up));
        }
}

/* x [rows, length] = a, w [columns, length] = b, onto c [columns]. */
static void products(int rows, int columns, int length)
{
    for (int halves = 0; halves < 2; halves++) {
        int panels = (columns + 47) / 48, each = halves + 1, steps = (length + each - 1) / each;
        uint16_t *w16 = calloc((size_t)panels * steps * 96, 2);
        float *w = (float *)w16;
        for (int n = 0; n < columns; n++)
            for (int k = 0; k < length; k++) {
                if (halves) w16[((n / 48 * steps + k / 2) * 48 + n % 48) * 2 + k % 2] = b16[n * length + k];
                else w[(n / 48 * steps + k) * 48 + n % 48] = b[n * length + k];
            }
        pardec_product(a, length, (char *)w16, 0, halves, c, 0, out, rows, columns, length, 1);
        for (int m = 0; m < rows; m++)
            for (int n = 0; n < columns; n++) {
                double sum = c[n];
                for (int k = 0; k < length; k++) sum += (double)a[m * length + k] * b[n * length + k];
                check("product", 0, m * columns + n, out[m * columns + n], sum, length);
            }
        free(w16);
    }
}

static void products_in_8_bits(int rows, int columns, int length)
{
    int panels = (columns + 31) / 32, steps = (length + 3) / 4;
    uint8_t *w = malloc(panels * steps * 128 + 4096);
    float scale[1024];
    memset(w, 128, panels * steps * 128 + 4096);
    for (int n = 0; n < columns; n++) {
        scale[n] = 0.01f * (n % 7 + 1);
        for (int k = 0; k < length; k++)
            w[((n / 32 * steps + k / 4) * 32 + n % 32) * 4 + k % 4] = (uint8_t)(128 + (int)(b[n * length + k] * 63));
    }
    pardec_int8(0, a, length, (char *)w, scale, c, 0, 0, out, columns, rows, columns, length, 1);
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            double sum = 0;
            for (int g = 0; g < length; g += 64) {
                float most = 0;
                for (int k = g; k < g + 64 && k < length; k++) most = fmaxf(most, fabsf(a[m * length + k]));
                float s = most / 127, by = s > 0 ? 1 / s : 0;
                for (int k = g; k < g + 64 && k < length; k++)
                    sum += rintf(a[m * length + k] * by) * s * (int)(b[n * length + k] * 63);
            }
            check("product in 8 bits", 0, m * columns + n, out[m * columns + n], sum * scale[n] + c[n], length);
        }
    free(w);
}

/* q [1, queries, heads, dim] = a, k and v [1, slots, kv, dim] = b and c. */
static void attention(int type, int queries, int slots, int heads, int kv, int dim)
{
    ptrdiff_t steps[14] = {0, heads * dim, dim, 0, kv * dim, dim, 0, kv * dim, dim, 0, heads * dim, dim, 0, 0};
    pardec_attend(type, of(type, a, a16), of(type, b, b16), of(type, c, c16), of(type, out, out16), NULL, NULL, steps,
                  NULL, 1, queries, heads, kv, slots, 0, dim, 0, 1);
    for (int i = 0; i < queries * heads; i++) {
        const float *q = a + i * dim;
        int head = i % heads / (heads / kv);
        double total = 0, sums[256] = {0};
        for (int s = 0; s < slots; s++) {
            double score = 0;
            for (int d = 0; d < dim; d++) score += (double)q[d] * b[(s * kv + head) * dim + d];
            double weight = exp(score / sqrt(dim));
            total += weight;
            for (int d = 0; d < dim; d++) sums[d] += weight * c[(s * kv + head) * dim + d];
        }
        for (int d = 0; d < dim; d++) check("attention", type, i * dim + d, found_at(type, i * dim + d), sums[d] / total, 2);
    }
}

static void likeliest(int width)
{
    int64_t ids[2], best[6];
    float probability[2], shares[6];
    pardec_greedy(a, ids, probability, 2, width, 1);
    pardec_likeliest(a, best, shares, 2, width, 3, 1);
    for (int r = 0; r < 2; r++) {
        const float *x = a + r * width;
        int top = 0;
        double mass = 0;
        for (int n = 0; n < width; n++) top = x[n] > x[top] ? n : top;
        for (int n = 0; n < width; n++) mass += exp(x[n] - x[top]);
        check("greedy", 0, r, (double)ids[r], top, 0);
        check("greedy probability", 0, r, probability[r], 1 / mass, 0);
        check("likeliest", 0, r, (double)best[3 * r], top, 0);
        check("likeliest share", 0, r, shares[3 * r], -log(mass), 1);
        for (int i = 1; i < 3; i++)
            if (x[best[3 * r + i]] > x[best[3 * r + i - 1]] || best[3 * r + i] == best[3 * r + i - 1]) wrong++;
    }
}

int main(void)
{
    srand(1);
    draw(a, a16), draw(b, b16), draw(c, c16);
    for (int type = 0; type < 2; type++) {
        for (int width = 1; width < 100; width += 7) norms_and_gates(type, width);
        for (int queries = 1; queries < 60; queries += 3) {
            attention(type, queries, 100, 3, 1, 32);
            attention(type, queries, 53, 2, 2, 20);
        }
    }
    for (int rows = 1; rows < 20; rows += 3) {
        products(rows, 100, 130);
        products(rows, 48, 401);
        if (pardec_multiplies_int8()) products_in_8_bits(rows, 100, 130), products_in_8_bits(rows, 30, 67);
    }
    for (int width = 3; width < 3000; width = width * 2 + 1) likeliest(width);
    if (wrong) printf("%d numbers are wrong\n", wrong);
    return wrong > 255 ? 255 : wrong;
}
