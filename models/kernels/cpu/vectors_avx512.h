/* The operations of vectors.h by AVX-512: 16 lanes. */

#include <immintrin.h>

/* x in all lanes, with the same bits. */
INLINE vec spread(float x) { return (vec)_mm512_set1_ps(x); }

/* The larger of each; of what is no number, b. */
INLINE vec larger(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }

/* a * b + c, and a * b - c, rounded once. */
INLINE vec fused_add(vec a, vec b, vec c) { return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vec fused_subtract(vec a, vec b, vec c) { return (vec)_mm512_fmsub_ps((__m512)a, (__m512)b, (__m512)c); }

/* The sum of all lanes: of each half's with the other's, again and again. */
INLINE float sum_of(vec x) { return _mm512_reduce_add_ps((__m512)x); }
INLINE float largest_of(vec x) { return _mm512_reduce_max_ps((__m512)x); }
INLINE int whole_sum_of(ints x) { return _mm512_reduce_add_epi32((__m512i)x); }

/* The larger of each whole number, and the largest of all lanes. */
INLINE ints larger_whole(ints a, ints b) { return (ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE int largest_whole_of(ints x) { return _mm512_reduce_max_epi32((__m512i)x); }

/* The sum of all lanes of a, and of b. */
INLINE void whole_sums_of(ints a, ints b, int sums[2])
{
    __m512i low = _mm512_unpacklo_epi32((__m512i)a, (__m512i)b), high = _mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
    __m512i all = _mm512_add_epi32(low, high);
    __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    _mm_storel_epi64((__m128i *)sums, _mm_add_epi32(four, _mm_unpackhi_epi64(four, four)));
}

/* Bit n of the result: whether a[n] = b[n], or a[n] > b[n]. */
INLINE unsigned where_equal(vec a, vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
INLINE unsigned where_above(vec a, vec b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ); }

/* Whole numbers as float32, and float32 rounded to the nearest whole number, of two as near to the even one. */
INLINE vec floats_of(ints x) { return (vec)_mm512_cvtepi32_ps((__m512i)x); }
INLINE ints whole_of(vec x) { return (ints)_mm512_cvtps_epi32((__m512)x); }

/* Whole numbers from -128 to 127 as bytes. */
INLINE bytes as_bytes(ints x) { return __builtin_convertvector(x, bytes); }

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

INLINE vec load_floats(const void *from) { return *(const vec *)from; }
INLINE vec load_halves(const void *from) { return widened(_mm256_loadu_si256(from)); }
INLINE void store_halves(void *to, vec x) { _mm256_storeu_si256(to, narrowed(x)); }

/* The same of the first `left`, fewer than LANES: zeros after them, and nothing is written there. */
INLINE __mmask16 first_lanes(ptrdiff_t left) { return (__mmask16)((1u << left) - 1); }
INLINE vec load_some_floats(const void *from, ptrdiff_t left)
{
    return (vec)_mm512_maskz_loadu_ps(first_lanes(left), from);
}
INLINE vec load_some_halves(const void *from, ptrdiff_t left)
{
    return widened(_mm256_maskz_loadu_epi16(first_lanes(left), from));
}
INLINE void store_some_floats(void *to, ptrdiff_t left, vec x)
{
    _mm512_mask_storeu_ps(to, first_lanes(left), (__m512)x);
}
INLINE void store_some_halves(void *to, ptrdiff_t left, vec x)
{
    _mm256_mask_storeu_epi16(to, first_lanes(left), narrowed(x));
}

/* Lane n of vector i becomes lane i of vector n. */
INLINE void transpose(vec x[LANES])
{
    __m512 pairs[LANES], fours[LANES], halves[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm512_unpacklo_ps((__m512)x[i], (__m512)x[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps((__m512)x[i], (__m512)x[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm512_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0x44);
            fours[i + 2 * j + 1] = _mm512_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0xee);
        }
    UNROLL for (int i = 0; i < LANES; i += 8)
        UNROLL for (int j = 0; j < 4; j++) {
            halves[i + j] = _mm512_shuffle_f32x4(fours[i + j], fours[i + 4 + j], 0x88);
            halves[i + 4 + j] = _mm512_shuffle_f32x4(fours[i + j], fours[i + 4 + j], 0xdd);
        }
    UNROLL for (int j = 0; j < 8; j++) { /* quarters 0 and 2 of the columns j, and those of j + 4 */
        x[j] = (vec)_mm512_shuffle_f32x4(halves[j], halves[8 + j], 0x88);
        x[8 + j] = (vec)_mm512_shuffle_f32x4(halves[j], halves[8 + j], 0xdd);
    }
}
