/* Vectors of float32 numbers for all kernels in C, with loads and stores of float32 and bfloat16. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Numbers of a vector: 16 by AVX-512, 8 by AVX2 with FMA, 4 by NEON. Reductions over the lanes of a vector add them in
 * an order that differs with their number, so that processors of different kinds round differently. */
#if defined(LANES)              /* chosen by the file that includes this */
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#elif defined(__aarch64__)
#define LANES 4
#else
#error "vectors are made for AVX-512, AVX2 with FMA, and NEON"
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint16_t half __attribute__((may_alias));

#define INLINE static inline __attribute__((always_inline))
#ifndef UNROLL                  /* chosen by the file that includes this */
#define UNROLL _Pragma("GCC unroll 32")
#endif

#if LANES == 16
#include "vectors_avx512.h"
#elif LANES == 8
#include "vectors_avx2.h"
#else
#include "vectors_neon.h"
#endif

/* Held in a register from here on: read from memory at each use, loads would take longer than the arithmetic. */
#if defined(KEPT)               /* by the file that includes this */
#elif LANES == 16
#define KEPT(x) __asm__("" : "+v"(x))
#elif LANES == 8
#define KEPT(x) __asm__("" : "+x"(x))
#else
#define KEPT(x) __asm__("" : "+w"(x))
#endif

INLINE int least(int a, int b) { return a < b ? a : b; }

enum { FLOAT32, BFLOAT16 };     /* types of numbers in memory; the second has the upper half of the first's bits */

INLINE ptrdiff_t bytes_of(int type) { return type == FLOAT32 ? 4 : 2; }

/* The address of the n-th number after the one at x. */
INLINE void *past(int type, const void *x, ptrdiff_t n) { return (char *)x + n * bytes_of(type); }

/* As it would come back from memory. */
INLINE vec rounded(const int type, vec x) { return type == FLOAT32 ? x : widened(narrowed(x)); }

/* A vector of the numbers from x[n] on, of which `left` exist; zeros after the last. */
INLINE vec load(const int type, const void *x, ptrdiff_t n, ptrdiff_t left)
{
    const void *from = past(type, x, n);
    if (left >= LANES) return type == FLOAT32 ? load_floats(from) : load_halves(from);
    return type == FLOAT32 ? load_some_floats(from, left) : load_some_halves(from, left);
}

/* Stores the first `left` numbers of a vector from out[n] on. */
INLINE void store(const int type, void *out, ptrdiff_t n, ptrdiff_t left, vec x)
{
    void *to = past(type, out, n);
    if (left >= LANES) {
        if (type == FLOAT32) *(vec *)to = x;
        else store_halves(to, x);
        return;
    }
    if (type == FLOAT32) store_some_floats(to, left, x);
    else store_some_halves(to, left, x);
}

#define MANY 12582912.0f        /* 1.5 * 2^23: adding it rounds to a whole number, in the low bits of the sum */

/* 2^(n + f) by a power series in f; `shifted` is MANY plus the whole number n. */
INLINE vec power_of(vec shifted, vec f)
{
    vec sum = fused_add(f, spread(1.5403530e-4f), spread(1.3333558e-3f));
    sum = fused_add(sum, f, spread(9.6181291e-3f));
    sum = fused_add(sum, f, spread(5.5504109e-2f));
    sum = fused_add(sum, f, spread(2.4022651e-1f));
    sum = fused_add(sum, f, spread(6.9314718e-1f));
    sum = fused_add(sum, f, spread(1.0f));
    return (vec)((ints)sum + ((ints)shifted << 23));
}

/* 2^x for x <= 126; 0 from -126 on downwards, since some processors take a hundred cycles for a product that is so
 * small, and weights of hidden slots would make many. */
INLINE vec power(vec x)
{
    ints small = x <= spread(-126.0f);
    x = larger(spread(-126.0f), x);
    vec shifted = x + MANY;
    return (vec)((ints)power_of(shifted, x - (shifted - MANY)) & ~small);
}

/* e^x for x <= 88; below -87 it is e^-87. x / ln 2 is computed in two parts, since its rounding error grows with x. */
INLINE vec exponential(vec x)
{
    x = larger(spread(-87.0f), x);
    vec high = spread(1.44269502f), low = spread(1.9259630e-8f), shifted = fused_add(x, high, spread(MANY));
    vec f = fused_subtract(x, high, shifted - MANY);
    return power_of(shifted, fused_add(x, low, f));
}

/* The highest of `width` numbers x, if none is NaN. */
INLINE float highest_of(const float *x, int width)
{
    vec highest = spread(-INFINITY), other = highest;
    float top = -INFINITY;
    int n = 0;
    for (; n + 2 * LANES <= width; n += 2 * LANES) {
        highest = larger(highest, *(const vec *)(x + n));
        other = larger(other, *(const vec *)(x + n + LANES));
    }
    if (n) top = largest_of(larger(highest, other));
    for (; n < width; n++) top = x[n] > top ? x[n] : top;
    return top;
}

/* The first n with x[n] = top; 0 where there is none. */
INLINE int index_of(const float *x, float top, int width)
{
    vec all = spread(top);
    int n = 0;
    for (; n + LANES <= width; n += LANES) {
        unsigned same = where_equal(*(const vec *)(x + n), all);
        if (same) return n + __builtin_ctz(same);
    }
    for (; n < width; n++) if (x[n] == top) return n;
    return 0;
}
