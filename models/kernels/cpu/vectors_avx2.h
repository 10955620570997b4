/* The operations of vectors.h by AVX2 with FMA: 8 lanes. Comments that vectors_avx512.h has are not repeated. */

#include <immintrin.h>

INLINE vec spread(float x) { return (vec)_mm256_set1_ps(x); }

INLINE vec larger(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }

INLINE vec fused_add(vec a, vec b, vec c) { return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vec fused_subtract(vec a, vec b, vec c) { return (vec)_mm256_fmsub_ps((__m256)a, (__m256)b, (__m256)c); }

INLINE float sum_of(vec x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE float largest_of(vec x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

INLINE int whole_sum_of(ints x)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

INLINE ints larger_whole(ints a, ints b) { return (ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }

INLINE int largest_whole_of(ints x)
{
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)));
}

INLINE void whole_sums_of(ints a, ints b, int sums[2])
{
    __m256i low = _mm256_unpacklo_epi32((__m256i)a, (__m256i)b), high = _mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
    __m256i all = _mm256_add_epi32(low, high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    _mm_storel_epi64((__m128i *)sums, _mm_add_epi32(four, _mm_unpackhi_epi64(four, four)));
}

INLINE unsigned where_equal(vec a, vec b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ));
}
INLINE unsigned where_above(vec a, vec b)
{
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GT_OQ));
}

INLINE vec floats_of(ints x) { return (vec)_mm256_cvtepi32_ps((__m256i)x); }
INLINE ints whole_of(vec x) { return (ints)_mm256_cvtps_epi32((__m256)x); }

INLINE bytes as_bytes(ints x)
{
    __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    return (bytes)_mm_cvtsi128_si64(_mm_packs_epi16(shorts, shorts));
}

INLINE vec widened(__m128i x) { return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16); }

INLINE __m128i narrowed(vec x)
{
    __m256i bits = (__m256i)x, odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256 none = _mm256_cmp_ps((__m256)x, (__m256)x, _CMP_UNORD_Q);
    up = (__m256i)_mm256_blendv_ps((__m256)up, (__m256)_mm256_set1_epi32(0x7fc00000), none);
    up = _mm256_srli_epi32(up, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}

INLINE vec load_floats(const void *from) { return *(const vec *)from; }
INLINE vec load_halves(const void *from) { return widened(_mm_loadu_si128(from)); }
INLINE void store_halves(void *to, vec x) { _mm_storeu_si128(to, narrowed(x)); }

INLINE __m256i first_lanes(ptrdiff_t left)
{
    static const int LANES_OF[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const void *)(LANES_OF + LANES - left));
}
INLINE vec load_some_floats(const void *from, ptrdiff_t left)
{
    return (vec)_mm256_maskload_ps(from, first_lanes(left));
}
INLINE vec load_some_halves(const void *from, ptrdiff_t left)
{
    uint16_t held[LANES] = {0};
    for (ptrdiff_t n = 0; n < left; n++) held[n] = ((const half *)from)[n];
    return load_halves(held);
}
INLINE void store_some_floats(void *to, ptrdiff_t left, vec x)
{
    _mm256_maskstore_ps(to, first_lanes(left), (__m256)x);
}
INLINE void store_some_halves(void *to, ptrdiff_t left, vec x)
{
    uint16_t held[LANES];
    store_halves(held, x);
    for (ptrdiff_t n = 0; n < left; n++) ((half *)to)[n] = held[n];
}

INLINE void transpose(vec x[LANES])
{
    __m256 pairs[LANES], fours[LANES];
    UNROLL for (int i = 0; i < LANES; i += 2) {
        pairs[i] = _mm256_unpacklo_ps((__m256)x[i], (__m256)x[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps((__m256)x[i], (__m256)x[i + 1]);
    }
    UNROLL for (int i = 0; i < LANES; i += 4)
        UNROLL for (int j = 0; j < 2; j++) {
            fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0x44);
            fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + 2 + j], 0xee);
        }
    UNROLL for (int i = 0; i < 4; i++) {
        x[i] = (vec)_mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        x[i + 4] = (vec)_mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}
