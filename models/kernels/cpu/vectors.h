/* Vectors of float32 numbers, as all kernels in C have them. */

#include <immintrin.h>
#include <stddef.h>

#define LANES 16                /* numbers of a vector */

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

INLINE int least(int a, int b) { return a < b ? a : b; }

/* The larger of each; of what is no number, b. */
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }

INLINE vec every(float x) { return (vec){0} + x; }

INLINE float sum_of(vec x) { return _mm512_reduce_add_ps((__m512)x); }

#define MANY 12582912.0f        /* 1.5 * 2^23: what is added to it is rounded to a whole number, which its bits end in */

/* 2^(n + f), by the series around n, a whole number that `shifted` holds. */
INLINE vec power_of(vec shifted, vec f)
{
    vec sum = f * 1.5403530e-4f + 1.3333558e-3f;
    sum = sum * f + 9.6181291e-3f;
    sum = sum * f + 5.5504109e-2f;
    sum = sum * f + 2.4022651e-1f;
    sum = sum * f + 6.9314718e-1f;
    sum = sum * f + 1.0f;
    return (vec)((ints)sum + ((ints)shifted << 23));
}

/* 2^x for x <= 126; below -126 it is 2^-126. */
INLINE vec power(vec x)
{
    x = larger(every(-126.0f), x);
    vec shifted = x + MANY;
    return power_of(shifted, x - (shifted - MANY));
}

/* e^x for x <= 88; below -87 it is e^-87. x / ln 2 in two parts: rounded, it would be off by as much as x is large. */
INLINE vec exponential(vec x)
{
    x = larger(every(-87.0f), x);
    __m512 high = _mm512_set1_ps(1.44269502f), low = _mm512_set1_ps(1.9259630e-8f);
    vec shifted = (vec)_mm512_fmadd_ps((__m512)x, high, _mm512_set1_ps(MANY));
    vec f = (vec)_mm512_fmsub_ps((__m512)x, high, (__m512)(shifted - MANY));
    return power_of(shifted, (vec)_mm512_fmadd_ps((__m512)x, low, (__m512)f));
}
