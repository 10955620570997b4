/* Vectors of float32 numbers, as all kernels in C have them, and how they come from memory and go there. */

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

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

enum { FLOAT32, BFLOAT16 };     /* types of numbers in memory; the second has the upper half of the first's bits */

INLINE ptrdiff_t bytes_of(int type) { return type == FLOAT32 ? 4 : 2; }

/* Where the number lies that comes `n` after the one at x. */
INLINE void *past(int type, const void *x, ptrdiff_t n) { return (char *)x + n * bytes_of(type); }

/* bfloat16 as float32. */
INLINE vec widened(__m256i x) { return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }

/* Rounded to the nearest bfloat16, of two that are as near to the even one; what is no number stays none. */
INLINE __m256i narrowed(vec x)
{
    __m512i bits = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 none = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    up = _mm512_mask_mov_epi32(up, none, _mm512_set1_epi32(0x7fc00000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/* As it would come back from memory. */
INLINE vec rounded(const int type, vec x) { return type == FLOAT32 ? x : widened(narrowed(x)); }

/* A vector of the numbers from x[n] on, of which there are `left`; zeros behind the last. */
INLINE vec load(const int type, const void *x, ptrdiff_t n, ptrdiff_t left)
{
    const void *from = past(type, x, n);
    if (left >= LANES) return type == FLOAT32 ? *(const vec *)from : widened(_mm256_loadu_si256(from));
    __mmask16 some = (__mmask16)((1u << left) - 1);
    return type == FLOAT32 ? (vec)_mm512_maskz_loadu_ps(some, from) : widened(_mm256_maskz_loadu_epi16(some, from));
}

/* The other way round: nothing is written behind the last. */
INLINE void store(const int type, void *out, ptrdiff_t n, ptrdiff_t left, vec x)
{
    void *to = past(type, out, n);
    if (left >= LANES) {
        if (type == FLOAT32) *(vec *)to = x;
        else _mm256_storeu_si256(to, narrowed(x));
        return;
    }
    __mmask16 some = (__mmask16)((1u << left) - 1);
    if (type == FLOAT32) _mm512_mask_storeu_ps(to, some, (__m512)x);
    else _mm256_mask_storeu_epi16(to, some, narrowed(x));
}

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
