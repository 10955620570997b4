/* AVX-512 for processors without it, by SIMDe (github.com/simd-everywhere/simde): included before a kernel. */

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <immintrin.h>

#define LANES 16
#define KEPT(x)                 /* no register is as long */
#define UNROLL                  /* of instructions that are functions, that takes a compiler minutes */

/* What vectors_avx512.h needs and SIMDe 0.7 lacks. */
typedef float floats_by_simde __attribute__((vector_size(64)));
typedef int ints_by_simde __attribute__((vector_size(64)));
typedef uint16_t shorts_by_simde __attribute__((vector_size(32)));

#define IN_EACH for (int i = 0; i < 16; i++)
#define STAND_IN static inline __attribute__((unused))

STAND_IN shorts_by_simde some_shorts(unsigned mask, const uint16_t *from)
{
    shorts_by_simde x = {0};
    IN_EACH if (mask >> i & 1) x[i] = from[i];
    return x;
}
STAND_IN floats_by_simde some_floats(unsigned mask, const float *from)
{
    floats_by_simde x = {0};
    IN_EACH if (mask >> i & 1) x[i] = from[i];
    return x;
}
STAND_IN void put_shorts(uint16_t *to, unsigned mask, shorts_by_simde x) { IN_EACH if (mask >> i & 1) to[i] = x[i]; }
STAND_IN void put_floats(float *to, unsigned mask, floats_by_simde x) { IN_EACH if (mask >> i & 1) to[i] = x[i]; }
STAND_IN float added(floats_by_simde x) { float sum = 0; IN_EACH sum += x[i]; return sum; }
STAND_IN int added_whole(ints_by_simde x) { int sum = 0; IN_EACH sum += x[i]; return sum; }
STAND_IN float highest(floats_by_simde x) { float most = x[0]; IN_EACH most = x[i] > most ? x[i] : most; return most; }
STAND_IN ints_by_simde to_nearest(floats_by_simde x)
{
    ints_by_simde whole;
    IN_EACH whole[i] = (int)__builtin_rintf(x[i]);
    return whole;
}
STAND_IN floats_by_simde of_quarters(floats_by_simde a, floats_by_simde b, int which)
{
    floats_by_simde x;
    IN_EACH x[i] = (i < 8 ? a : b)[(which >> i / 4 * 2 & 3) * 4 + i % 4];
    return x;
}

#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps(x) ((__m512)__builtin_convertvector((ints_by_simde)(x), floats_by_simde))
#define _mm512_cvtepu16_epi32(x) ((__m512i)__builtin_convertvector((shorts_by_simde)(x), ints_by_simde))
#define _mm512_cvtepi32_epi16(x) ((__m256i)__builtin_convertvector((ints_by_simde)(x), shorts_by_simde))
#define _mm512_cvtps_epi32(x) ((__m512i)to_nearest((floats_by_simde)(x)))
#define _mm256_maskz_loadu_epi16(mask, from) ((__m256i)some_shorts(mask, from))
#define _mm256_mask_storeu_epi16(to, mask, x) put_shorts(to, mask, (shorts_by_simde)(x))
#define _mm512_maskz_loadu_ps(mask, from) ((__m512)some_floats(mask, from))
#define _mm512_mask_storeu_ps(to, mask, x) put_floats(to, mask, (floats_by_simde)(x))
#define _mm512_reduce_add_ps(x) added((floats_by_simde)(x))
#define _mm512_reduce_add_epi32(x) added_whole((ints_by_simde)(x))
#define _mm512_reduce_max_ps(x) highest((floats_by_simde)(x))
#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4(a, b, which) ((__m512)of_quarters((floats_by_simde)(a), (floats_by_simde)(b), which))
